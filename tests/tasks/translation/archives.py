"""Look-alikes of the official archives: the exact layouts, a few sentences each, with the traps of the real ones."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

SENTENCES = {
    "de": "der Hund und die Katze sehen einen alten Baum im Garten hinter dem Haus",
    "en": "the dog and the cat see an old tree in the garden behind the house",
    "ro": "câinele și pisica văd un copac bătrân în grădina din spatele casei",
    "ja": "犬 と 猫 は 家 の 裏 庭 に 古い 木 を 見る",
}


def sentences(language: str, number: int, start: int = 0) -> list[str]:
    """Some sentences; line i of two languages counts as a translation pair."""
    words = SENTENCES[language].split(" ")
    blank = "" if language == "ja" else " "
    stop = "。" if language == "ja" else "."
    return [
        blank.join(words[(i * 3 + k) % len(words)] for k in range(4 + i % 5)) + stop
        for i in range(start, start + number)
    ]


def tokens(language: str, lines: list[str]) -> list[str]:
    """KFTT's own tokens: here simply one per character, or with the full stop apart."""
    return [" ".join(line) if language == "ja" else line.replace(".", " .") for line in lines]


def tar(path: Path, files: dict[str, str]) -> Path:
    """Write a gzipped tar archive."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            content = text.encode("utf-8")
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def lines_of(lines: list[str]) -> str:
    return "".join(line + "\n" for line in lines)


def iwslt_tags(language: str) -> str:
    """Training text: metadata lines start with "<", segments carry blanks and entities."""
    body = sentences(language, 6)
    body[1] += " R&amp;D &lt;b&gt;"
    body[2] = f" {body[2]}  \u00a0"
    head = ["<url>http://example.org/1</url>", "<keywords>talks, a &amp; b</keywords>", "<title>A</title>"]
    second = ["<url>http://example.org/2</url>", "<talkid>2</talkid>", "<description>B</description>"]
    return lines_of([*head, *body[:3], *second, *body[3:]])


def iwslt_xml(language: str, number: int = 3, source: bool = True) -> str:
    kind = "srcset" if source else "refset"
    segments = [f'<seg id="{i}"> {line} </seg>' for i, line in enumerate(sentences(language, number, 10), 1)]
    segments[0] = segments[0].replace(" </seg>", " &amp; so on </seg>")
    return lines_of(
        [
            '<?xml version="1.0" encoding="UTF-8"?>',
            "<mteval>",
            f'<{kind} setid="iwslt2017-x" srclang="german">',
            '<doc docid="1" genre="lectures">',
            "<title>No seg here</title>",
            *segments,
            "</doc>",
            f"</{kind}>",
            "</mteval>",
        ]
    )


def write_iwslt(folder: Path, leave_out: str = "") -> dict[str, Path]:
    """Write the four archives at their official paths below ``folder``. Returns local name -> path."""
    written = {}
    for pair in ("de-en", "en-de"):
        source, target = pair.split("-")
        files = {f"{pair}/README": "read me\n"}
        for language in (source, target):
            files[f"{pair}/train.tags.{pair}.{language}"] = iwslt_tags(language)
            for name in ["dev2010", *(f"tst{year}" for year in range(2010, 2016))]:
                files[f"{pair}/IWSLT17.TED.{name}.{pair}.{language}.xml"] = iwslt_xml(language)
        files = {name: text for name, text in files.items() if name != leave_out}
        path = folder / f"2017-01-trnted/texts/{source}/{target}/{pair}.tgz"
        written[f"{pair}.tgz"] = tar(path, files)
        files = {f"{pair}/IWSLT17.TED.{s}.{pair}.{source}.xml": iwslt_xml(source, 4) for s in ("tst2016", "tst2017")}
        path = folder / f"2017-01-ted-test/texts/{source}/{target}/{pair}.tgz"
        written[f"2017-01-ted-test.{pair}.tgz"] = tar(path, files)
    return written


def write_kftt(folder: Path, leave_out: str = "") -> dict[str, Path]:
    """Write KFTT's archive; one training pair has an empty English side."""
    files = {"kftt-data-1.0/README.txt": "read me\n"}
    for language in ("ja", "en"):
        for name, number in (("train", 6), ("tune", 2), ("dev", 3), ("test", 4)):
            lines = sentences(language, number)
            if name == "train" and language == "en":
                lines[4] = ""
            files[f"kftt-data-1.0/data/orig/kyoto-{name}.{language}"] = lines_of(lines)
            files[f"kftt-data-1.0/data/tok/kyoto-{name}.{language}"] = lines_of(tokens(language, lines))
            if name == "train":
                clean = [line for i, line in enumerate(lines) if i != 4]
                files[f"kftt-data-1.0/data/tok/kyoto-train.cln.{language}"] = lines_of(tokens(language, clean))
    files.pop(leave_out, None)
    return {"kftt-data-1.0.tar.gz": tar(folder / "kftt-data-1.0.tar.gz", files)}


def sgm(language: str, source: bool, number: int = 3) -> str:
    """SGM is not XML: upper case, unquoted attributes, a bare ampersand."""
    kind = "srcset" if source else "refset"
    segments = [f'<seg id="{i}">{line}</seg>' for i, line in enumerate(sentences(language, number, 20), 1)]
    segments[1] = segments[1].replace("</seg>", " AT&T &quot;x&quot;</seg>")
    head = [f'<{kind} setid="newstest2016" srclang="any">', '<doc sysid="ref" docid=1>', "<p>"]
    return lines_of([*head, *segments, "</p>", "</doc>", f"</{kind}>"])


def write_wmt(folder: Path, setimes: str = "SETIMES", leave_out: str = "") -> dict[str, Path]:
    """Write the four archives of Romanian-English, flat in ``folder``."""
    europarl = {
        f"training-parallel-ep-v8/europarl-v8.ro-en.{lang}": lines_of(sentences(lang, 4)) for lang in ("ro", "en")
    }
    development = {
        "dev/newsdev2016-roen-src.ro.sgm": sgm("ro", True),
        "dev/newsdev2016-roen-ref.en.sgm": sgm("en", False),
    }
    test = {
        "test/newstest2016-roen-src.ro.sgm": sgm("ro", True),
        "test/newstest2016-roen-ref.en.sgm": sgm("en", False),
    }
    written = {}
    for name, files in (("training-parallel-ep-v8.tgz", europarl), ("dev.tgz", development), ("test.tgz", test)):
        written[name] = tar(folder / name, {path: text for path, text in files.items() if path != leave_out})
    written["en-ro.txt.zip"] = folder / "en-ro.txt.zip"
    with zipfile.ZipFile(written["en-ro.txt.zip"], "w") as archive:
        archive.writestr("README", "read me\n")
        for language in ("ro", "en"):
            archive.writestr(f"{setimes}.en-ro.{language}", lines_of(sentences(language, 5, 4)))
    return written


def write_conll(folder: Path, leave_out: str = "") -> Path:
    """Write the archive of the repository, with a folder that is not data of task 1."""
    files = {"conll2018-master/README.md": "read me\n", "conll2018-master/task2/all/english": "x\n"}
    for part, language in (("all", "english"), ("surprise", "french")):
        if part == leave_out:
            continue
        for kind in ("train-low", "train-medium", "train-high", "dev", "test"):
            files[f"conll2018-master/task1/{part}/{language}-{kind}"] = "walk\twalked\tV;PST\n"
        files[f"conll2018-master/task1/{part}/{language}-covered-test"] = "walk\tV;PST\n"
    return tar(folder / "master.tar.gz", files)
