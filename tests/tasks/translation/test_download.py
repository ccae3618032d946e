"""The download scripts against a local server with look-alike archives of the official layouts."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from onmt_entmax.files import read_lines
from onmt_entmax.tasks.translation.prepare import Settings, prepare
from tests.tasks.translation.archives import tar, write_conll, write_iwslt, write_kftt, write_wmt

SCRIPTS = Path(__file__).parents[3] / "scripts"
pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="the download scripts need curl")


class Handler(BaseHTTPRequestHandler):
    """Serves ``server.folder``, with ranges unless ``server.ranges`` is false; remembers what was asked for."""

    def do_GET(self):
        path = self.server.folder / self.path.lstrip("/")
        wanted = self.headers.get("Range")
        self.server.asked.append((self.path.lstrip("/"), wanted))
        if not path.is_file():
            return self.send_error(404)
        content = path.read_bytes()
        start = int(wanted[len("bytes=") : -1]) if wanted and self.server.ranges else 0
        if start >= len(content):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start:])
        return None

    def log_message(self, *args):
        pass


@pytest.fixture
def server(tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.folder, server.asked, server.ranges = tmp_path / "www", [], True
    server.folder.mkdir()
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def download(name: str, *options: object) -> subprocess.CompletedProcess:
    environment = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    command = ["bash", str(SCRIPTS / f"download_{name}.sh"), *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def checksums(path: Path, archives: dict[str, Path]) -> Path:
    lines = (f"{hashlib.md5(archive.read_bytes()).hexdigest()}  {name}\n" for name, archive in archives.items())
    path.write_text("".join(lines), encoding="utf-8")
    return path


def test_iwslt_from_a_mirror_to_training_text(server, tmp_path):
    sums = checksums(tmp_path / "sums", write_iwslt(server.folder))
    output = tmp_path / "iwslt17"
    result = download("iwslt17", "--mirror", server.url, "--output", output, "--checksums", sums)
    assert (result.returncode, result.stderr) == (0, "")
    assert "Creative Commons BY-NC-ND 3.0" in result.stdout
    assert len(server.asked) == 4
    for direction in ("de-en", "en-de"):
        settings = Settings("iwslt17", direction, test=["tst2015", "tst2016"], merges=20, any_size=True)
        counts = prepare(settings, output, tmp_path / direction)["counts"]
        # tst2015 has 3 segments; tst2016's 4 references come from the archive of the other direction
        assert counts["train"]["read"] == 6 and counts["dev"]["read"] == 3 and counts["test"]["read"] == 3 + 4
    again = download("iwslt17", "--mirror", server.url, "--output", output, "--checksums", sums)
    assert again.returncode == 0 and len(server.asked) == 4  # nothing is fetched twice


def test_the_official_checksum_is_what_counts_without_others(server, tmp_path):
    archives = write_iwslt(server.folder)
    actual = hashlib.md5(archives["de-en.tgz"].read_bytes()).hexdigest()
    result = download("iwslt17", "--mirror", server.url, "--output", tmp_path / "data")
    assert result.returncode == 2
    assert result.stderr.startswith("download_iwslt17.sh: de-en.tgz")
    assert actual in result.stderr and "ca2b94d694150d4d6c5dc64c200fa589" in result.stderr
    assert [path.name for path in (tmp_path / "data/archives").iterdir()] == ["de-en.tgz.bad"]


def test_another_archive_takes_the_place_of_what_was_unpacked(server, tmp_path):
    archive = write_kftt(server.folder)["kftt-data-1.0.tar.gz"]
    output = tmp_path / "kftt"
    first = download("kftt", "--mirror", server.url, "--output", output)
    assert f"kftt-data-1.0.tar.gz: unpacked into {output}/kftt\n" in first.stdout
    again = download("kftt", "--mirror", server.url, "--output", output)
    assert f"kftt-data-1.0.tar.gz: unpacked in {output}/kftt already, from this archive\n" in again.stdout
    unpacked = output / "kftt/kftt-data-1.0/data/tok/kyoto-dev.en"
    right = unpacked.read_bytes()
    unpacked.write_bytes(b"of a wrong archive\n")
    (output / "kftt/.archive-md5").write_text(hashlib.md5(b"wrong").hexdigest(), encoding="utf-8")
    other = download("kftt", "--mirror", server.url, "--output", output)
    assert f"unpacked into {output}/kftt\n" in other.stdout and unpacked.read_bytes() == right
    assert (output / "kftt/.archive-md5").read_text().strip() == hashlib.md5(archive.read_bytes()).hexdigest()


def test_a_folder_of_somebody_else_stays(server, tmp_path):
    write_kftt(server.folder)
    notes = tmp_path / "data/kftt/notes"
    notes.parent.mkdir(parents=True)
    notes.write_text("mine", encoding="utf-8")
    result = download("kftt", "--mirror", server.url, "--output", tmp_path / "data")
    assert result.returncode == 2 and f"{notes.parent} is there, and not of this script. Move it away" in result.stderr
    assert notes.read_text() == "mine" and not notes.parent.with_name("kftt.unpacking").exists()


def test_a_partial_download_is_resumed(server, tmp_path):
    archive = write_kftt(server.folder)["kftt-data-1.0.tar.gz"]
    part = tmp_path / "kftt/archives/kftt-data-1.0.tar.gz.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(archive.read_bytes()[:100])
    result = download("kftt", "--mirror", server.url, "--output", tmp_path / "kftt")
    assert (result.returncode, result.stderr) == (0, "")
    assert server.asked == [("kftt-data-1.0.tar.gz", "bytes=100-")]
    assert part.with_suffix("").read_bytes() == archive.read_bytes()
    assert not part.exists()


@pytest.mark.parametrize("trouble", ["no ranges", "part is too long"])
def test_a_download_that_cannot_be_resumed_begins_again(server, tmp_path, trouble):
    archive = write_kftt(server.folder)["kftt-data-1.0.tar.gz"]
    part = tmp_path / "kftt/archives/kftt-data-1.0.tar.gz.part"
    part.parent.mkdir(parents=True)
    server.ranges = trouble != "no ranges"
    part.write_bytes(archive.read_bytes()[:100] if trouble == "no ranges" else archive.read_bytes() + b"x" * 50)
    result = download("kftt", "--mirror", server.url, "--output", tmp_path / "kftt")
    assert result.returncode == 0, result.stderr
    assert part.with_suffix("").read_bytes() == archive.read_bytes()


def test_an_archive_that_lacks_a_file_is_named_with_it(server, tmp_path):
    lost = "kftt-data-1.0/data/tok/kyoto-train.cln.en"
    write_kftt(server.folder, leave_out=lost)
    result = download("kftt", "--mirror", server.url, "--output", tmp_path / "kftt")
    assert result.returncode == 2
    assert result.stderr == f"download_kftt.sh: the archive kftt-data-1.0.tar.gz lacks the file {lost}.\n"
    assert [path.name for path in (tmp_path / "kftt").iterdir()] == ["archives"]


def test_a_cut_archive_without_a_known_checksum_is_found(tmp_path):
    archive = write_kftt(tmp_path / "from")["kftt-data-1.0.tar.gz"]
    archive.write_bytes(archive.read_bytes()[:-200])
    result = download("kftt", "--from", tmp_path / "from", "--output", tmp_path / "kftt")
    assert result.returncode == 2 and "it is not a whole archive" in result.stderr


def test_a_corrupt_zip_is_found(tmp_path):
    (tmp_path / "from").mkdir()
    sums = checksums(tmp_path / "sums", write_wmt(tmp_path / "from", "SETIMES"))
    known = [line for line in read_lines(sums) if "en-ro.txt.zip" not in line]
    sums.write_text("".join(f"{line}\n" for line in known), encoding="utf-8")
    (archive,) = (tmp_path / "from").rglob("en-ro.txt.zip")
    with zipfile.ZipFile(archive) as file:
        member = file.infolist()[-1]
    content = bytearray(archive.read_bytes())
    content[member.header_offset + 30 + len(member.filename) + 5] ^= 0xFF  # behind its header
    archive.write_bytes(content)
    output = tmp_path / "wmt16"
    result = download("wmt16_roen", "--from", tmp_path / "from", "--output", output, "--checksums", sums)
    assert result.returncode == 2 and "en-ro.txt.zip" in result.stderr and "not a whole archive" in result.stderr
    assert not list(output.rglob("en-ro.txt.zip"))


def test_a_missing_archive(server, tmp_path):
    result = download("kftt", "--from", tmp_path, "--output", tmp_path / "kftt")
    assert result.returncode == 2
    assert f"{tmp_path} lacks the file kftt-data-1.0.tar.gz" in result.stderr
    result = download("kftt", "--mirror", server.url, "--output", tmp_path / "kftt")
    assert result.returncode == 2
    assert f"{server.url}/kftt-data-1.0.tar.gz could not be fetched" in result.stderr


@pytest.mark.parametrize("setimes", ["SETIMES", "SETIMES2"])
def test_wmt16_from_a_folder_under_either_name(tmp_path, setimes):
    (tmp_path / "from").mkdir()
    sums = checksums(tmp_path / "sums", write_wmt(tmp_path / "from", setimes))
    output = tmp_path / "wmt16"
    result = download("wmt16_roen", "--from", tmp_path / "from", "--output", output, "--checksums", sums)
    assert (result.returncode, result.stderr) == (0, "")
    manifest = prepare(Settings("wmt16", "en-ro", merges=20, any_size=True), output, tmp_path / "out")
    assert manifest["counts"]["train"]["read"] == 4 + 5  # Europarl and SETIMES
    assert f"setimes/{setimes}.en-ro.ro" in manifest["inputs"]


def test_conll2018_counts_and_copies(server, tmp_path):
    write_conll(server.folder)
    output = tmp_path / "conll"
    result = download("conll2018", "--mirror", server.url, "--output", output)
    assert result.returncode == 2
    assert "train-low: 2 languages and 2 lines, the official data have 103 and 10261" in result.stderr
    result = download("conll2018", "--output", output, "--any-size")  # what is there needs no network
    assert (result.returncode, result.stderr) == (0, "")
    assert sorted(path.name for path in (output / "task1").iterdir()) == ["all", "surprise"]
    copied = download("conll2018", "--from", output, "--output", tmp_path / "copy", "--any-size")
    assert copied.returncode == 0
    assert (tmp_path / "copy/task1/surprise/french-dev").read_bytes() == b"walk\twalked\tV;PST\n"


def test_conll2018_archive_without_the_surprise_languages(server, tmp_path):
    write_conll(server.folder, leave_out="surprise")
    result = download("conll2018", "--mirror", server.url, "--output", tmp_path / "conll")
    assert result.returncode == 2 and "lacks the folder task1/all or task1/surprise" in result.stderr


@pytest.mark.realdata
def test_conll2018_official_counts(real_data, tmp_path):
    with_archive = tmp_path / "from"
    with_archive.mkdir()
    subprocess.run(["tar", "xJf", real_data / "conll2018_task1.tar.xz", "-C", with_archive], check=True)
    result = download("conll2018", "--from", with_archive, "--output", tmp_path / "conll")
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    "options, message",
    [
        (["--outptu", "x"], "unknown option --outptu. Valid choices: --output"),
        (["--any-size"], "unknown option --any-size"),  # only where there are counts
        (["--output"], "--output needs a value"),
        (["--from", "nowhere"], "--from nowhere is not a folder"),
        (["--checksums", "nowhere"], "--checksums nowhere: no such file"),
    ],
)
def test_wrong_options(options, message):
    result = download("kftt", *options)
    assert result.returncode == 2 and message in result.stderr


def test_help_says_the_licence_and_the_source():
    result = download("wmt16_roen", "--help")
    assert result.returncode == 0
    assert "Licence:" in result.stdout and "http://data.statmt.org/wmt16/translation-task" in result.stdout


def test_a_present_archive_that_differs_is_not_used(tmp_path):
    tar(tmp_path / "data/archives/de-en.tgz", {"de-en/README": "not it\n"})
    result = download("iwslt17", "--from", tmp_path, "--output", tmp_path / "data")
    assert result.returncode == 2 and "Delete it to fetch it again" in result.stderr
