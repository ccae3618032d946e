# Shared by the download_*.sh scripts: options, resumable and verified downloads, unpacking. Source it; it is no command.
# A script sets SCRIPT, WHAT, LICENCE, BASES (where the archives come from), OUTPUT (the default folder) and, if it counts
# files and lines, COUNTS=1; then it calls `options "$@"`, and `archive` and `unpack` for each archive.
set -euo pipefail
COUNTS=${COUNTS:-} FROM='' MIRROR='' CHECKSUMS='' ANY_SIZE=''

die() { echo "$SCRIPT: $1" >&2; exit 2; }

options() {
  while [ $# -gt 0 ]; do
    case "$1" in
      --output | --from | --mirror | --checksums)
        [ -n "${2-}" ] || die "$1 needs a value."
        case "$1" in
          --output) OUTPUT=$2 ;; --from) FROM=$2 ;; --mirror) MIRROR=${2%/} ;; --checksums) CHECKSUMS=$2 ;;
        esac
        shift 2
        ;;
      -h | --help) help; exit 0 ;;
      *)
        [ "$1" = --any-size ] && [ -n "$COUNTS" ] ||
          die "unknown option $1. Valid choices: --output, --from, --mirror, --checksums${COUNTS:+, --any-size}, --help."
        ANY_SIZE=1
        shift
        ;;
    esac
  done
  [ -z "$FROM" ] || [ -d "$FROM" ] || die "--from $FROM is not a folder."
  [ -z "$CHECKSUMS" ] || [ -f "$CHECKSUMS" ] || die "--checksums $CHECKSUMS: no such file."
  command -v python3 >/dev/null || die "python3 is needed."
  printf '%s\nLicence: %s\n' "$WHAT" "$LICENCE"
  mkdir -p "$OUTPUT/archives"
}

help() {
  cat <<END
$WHAT
Licence: $LICENCE

  bash scripts/$SCRIPT [options]

  --output FOLDER   where the data go (default: $OUTPUT); run it again to resume
  --from FOLDER     take the archives from this folder; nothing is downloaded
  --mirror URL      fetch URL/PATH, with the official PATH of each archive, in place of the official servers
  --checksums FILE  lines "MD5  NAME" for the archives, in place of the official ones (a mirror that packs anew);
                    an archive without a line is only tested for being whole
${COUNTS:+  --any-size        accept other numbers of files and lines than the official ones
}
Official source: $BASES
END
}

md5_of() {
  python3 -c 'import hashlib, sys
digest = hashlib.md5()
with open(sys.argv[1], "rb") as stream:
    for block in iter(lambda: stream.read(1 << 20), b""):
        digest.update(block)
print(digest.hexdigest())' "$1"
}

# Say in one word why an archive is not what it should be; nothing if it is.
verify() { # file, name, official md5 or ""
  local expected=$3 actual
  if [ -n "$CHECKSUMS" ]; then
    expected=$(awk -v name="$2" '{ sub(/\r$/, "") } $2 == name || $2 == "*" name { print $1; exit }' "$CHECKSUMS")
  fi
  if [ -n "$expected" ]; then
    actual=$(md5_of "$1")
    [ "$actual" = "$expected" ] || echo "its MD5 checksum is $actual, not $expected"
  else
    # no checksum is known: at least it must be a whole archive
    list "$1" "$2" >/dev/null 2>&1 || echo "it is not a whole archive"
  fi
}

list() {
  case "$2" in
    # python3 -m zipfile -t says "corrupted" with exit status 0
    *.zip) python3 -c 'import sys, zipfile; sys.exit(zipfile.ZipFile(sys.argv[1]).testzip())' "$1" ;;
    *) tar -tzf "$1" ;;
  esac
}

# Get one archive into $OUTPUT/archives/NAME, whole and verified, or stop.
archive() { # base URL, path below it, official md5 or "", [name]
  local base=$1 path=$2 md5=$3 name=${4:-${2##*/}} target part source wrong resumed=''
  target=$OUTPUT/archives/$name part=$OUTPUT/archives/$name.part
  if [ -f "$target" ]; then
    wrong=$(verify "$target" "$name" "$md5")
    [ -z "$wrong" ] || die "$target: $wrong. Delete it to fetch it again."
    echo "$name: there already"
    return
  fi
  if [ -n "$FROM" ]; then
    for source in "$FROM/$path" "$FROM/$name" ''; do
      [ -f "$source" ] && break
    done
    [ -n "$source" ] || die "$FROM lacks the file $name (or $path)."
    echo "$name: from $source"
    cp "$source" "$part"
  else
    source=${MIRROR:-$base}/$path
    echo "$name: from $source"
    [ ! -s "$part" ] || resumed=1
    fetch "$source" "$part"
  fi
  wrong=$(verify "$part" "$name" "$md5")
  if [ -n "$wrong" ] && [ -n "$resumed" ]; then
    # what was there before may have been of another file
    rm -f "$part"
    fetch "$source" "$part"
    wrong=$(verify "$part" "$name" "$md5")
  fi
  if [ -n "$wrong" ]; then
    mv "$part" "$target.bad"
    die "$name from $source: $wrong. It is kept as $target.bad; run the script again to fetch it anew."
  fi
  mv "$part" "$target"
}

fetch() { # URL, partial file
  command -v curl >/dev/null || die "curl is needed to download (or give the archives with --from FOLDER)."
  local status=0
  get "$1" "$2" || status=$?
  # 33 and 36: the server cannot resume
  if [ $status = 33 ] || [ $status = 36 ]; then
    rm -f "$2"
    status=0
    get "$1" "$2" || status=$?
  fi
  [ $status = 0 ] || die "$1 could not be fetched (curl: status $status). Run the script again to resume."
}

get() {
  curl --fail --silent --show-error --location --retry 3 --connect-timeout 30 --speed-limit 1 --speed-time 120 \
    --continue-at - --output "$2" "$1"
}

# Refuse to replace a folder that this script has not made.
ours_to_replace() { # folder
  if [ -e "$1" ] && { [ ! -d "$1" ] || [ -n "$(ls -A "$1")" ]; }; then
    rm -rf "$1.unpacking"
    die "$1 is there, and not of this script. Move it away, or give another --output."
  fi
}

# Unpack an archive into $OUTPUT/FOLDER, unless it was, and check that it has the files needed; nothing is left of one
# that lacks some. FOLDER/.archive-md5 says which archive a folder is of.
unpack() { # name, folder, files needed...
  local name=$1 folder=$OUTPUT/$2 fresh file missing='' md5 stamp=''
  shift 2
  for file in "$@"; do [ -f "$folder/$file" ] || missing=$file; done
  md5=$(md5_of "$OUTPUT/archives/$name")
  [ ! -f "$folder/.archive-md5" ] || stamp=$(cat "$folder/.archive-md5")
  if [ -z "$missing" ] && [ "${stamp:-$md5}" = "$md5" ]; then
    echo "$name: unpacked in $folder already${stamp:+, from this archive}"
    return
  fi
  fresh=$folder.unpacking
  rm -rf "$fresh" && mkdir -p "$fresh"
  case "$name" in
    *.zip) python3 -m zipfile -e "$OUTPUT/archives/$name" "$fresh" ;;
    *) tar -xzf "$OUTPUT/archives/$name" -C "$fresh" ;;
  esac || { rm -rf "$fresh"; die "$name could not be unpacked."; }
  for file in "$@"; do
    [ -f "$fresh/$file" ] || { rm -rf "$fresh"; die "the archive $name lacks the file $file."; }
  done
  printf '%s\n' "$md5" >"$fresh/.archive-md5"
  [ -n "$stamp" ] || ours_to_replace "$folder"
  rm -rf "$folder"
  mv "$fresh" "$folder"
  echo "$name: unpacked into $folder"
}
