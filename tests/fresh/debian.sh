#!/usr/bin/env bash
# A fresh machine: Debian is put into a folder with debootstrap, this repository's HEAD is cloned into it, in a folder
# with a blank in its name, and the quickstart runs there in a chroot, on Debian's own Python.
#
#   sudo bash tests/fresh/debian.sh                       Debian 13 (trixie), Python 3.13
#   sudo bash tests/fresh/debian.sh --suite testing       Debian testing: the newest Python
#
# --folder DIR    where the system goes (default: /var/tmp/fresh-SUITE; a system that is there is used again; several GB)
# --mirror URL    of Debian's packages (default: the mirror of the system that this runs on)
# --share DIR     show this folder inside too, under the same path; may be repeated (a pip cache, wheels on disk)
# --command TEXT  what runs in the clone (default: bash scripts/quickstart.sh)
# pip's settings (PIP_*, /etc/pip.conf, /etc/xdg/pip), certificates (/etc/ssl/certs, SSL_*), STEPS, RUN and ONMT_ENTMAX_*
# are handed on.
set -euo pipefail
SUITE=trixie FOLDER='' MIRROR='' SHARED=() COMMAND='bash scripts/quickstart.sh'
fail() { echo "debian.sh: $1" >&2; exit 2; }
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || fail "$1 needs a value, or is no option. Valid choices: --suite, --folder, --mirror, --share, --command."
  case "$1" in
    --suite) SUITE=$2 ;; --folder) FOLDER=$2 ;; --mirror) MIRROR=$2 ;; --command) COMMAND=$2 ;;
    --share) [ -d "$2" ] || fail "--share $2 is not a folder."; SHARED+=("$(realpath "$2")") ;;
    *) fail "unknown option $1. Valid choices: --suite, --folder, --mirror, --share, --command." ;;
  esac
  shift 2
done
REPOSITORY=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
FOLDER=${FOLDER:-/var/tmp/fresh-$SUITE}
[ "$(id -u)" = 0 ] || fail "only root can make a chroot."
command -v debootstrap >/dev/null || fail "debootstrap is needed (Debian, Ubuntu: apt install debootstrap)."
if [ -z "$MIRROR" ]; then
  MIRROR=$(sed -nE 's/^URIs: +([^ ]+).*/\1/p; s/^deb +(\[[^]]*\] +)?([^ ]+).*/\2/p' \
    /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | grep -m 1 -E '/debian/?$' || true)
  [ -n "$MIRROR" ] || fail "this system names no mirror of Debian: --mirror URL."
fi

if [ ! -e "$FOLDER/root/.made" ]; then
  echo "debian.sh: $SUITE from $MIRROR into $FOLDER"
  debootstrap --variant=minbase --include=ca-certificates,git,python3,python3-venv "$SUITE" "$FOLDER" "$MIRROR" >"$FOLDER.log" 2>&1 ||
    fail "debootstrap failed; see $FOLDER.log"
  touch "$FOLDER/root/.made"
fi

MOUNTED=()
leave() { for ((i = ${#MOUNTED[@]} - 1; i >= 0; i--)); do umount --recursive --lazy "${MOUNTED[i]}" || true; done; }
trap leave EXIT
show() { # folder
  mkdir -p "$FOLDER$1"
  mount --rbind --make-rprivate "$1" "$FOLDER$1"
  MOUNTED+=("$FOLDER$1")
}
for folder in /proc /dev ${SHARED[@]+"${SHARED[@]}"}; do show "$folder"; done
cp -L /etc/resolv.conf /etc/hosts "$FOLDER/etc/" 2>/dev/null || true
for path in /etc/pip.conf /etc/xdg/pip /etc/ssl/certs/ca-certificates.crt; do
  if [ -e "$path" ]; then mkdir -p "$FOLDER${path%/*}" && cp -RL "$path" "$FOLDER${path%/*}/"; fi
done

CLONE="/root/a clone"
rm -rf "$FOLDER$CLONE"
git clone --quiet --no-hardlinks "$REPOSITORY" "$FOLDER$CLONE"
HANDED_ON=()
while IFS= read -r name; do HANDED_ON+=("$name=${!name}"); done < <(compgen -e | grep -E '^(PIP_|SSL_|REQUESTS_|STEPS$|RUN$|ONMT_ENTMAX_)')
chroot "$FOLDER" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 ${HANDED_ON[@]+"${HANDED_ON[@]}"} \
  bash -c "cd '$CLONE' && python3 -V && $COMMAND"
