"""Readers of the official layouts, on look-alikes and on the real archives."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from onmt_entmax.errors import UserError
from onmt_entmax.files import read_lines
from onmt_entmax.tasks.translation.readers import Reader, read_segments, split_direction
from tests.tasks.translation.archives import sentences, tokens, write_iwslt, write_kftt, write_wmt


def unpack(archives: dict[str, Path], folder: Path) -> Path:
    for name, archive in archives.items():
        inside = folder / name
        inside.mkdir(parents=True)
        if name.endswith(".zip"):
            subprocess.run(["python3", "-m", "zipfile", "-e", archive, inside], check=True)
        else:
            subprocess.run(["tar", "xzf", archive, "-C", inside], check=True)
    return folder


def test_iwslt_training_text(tmp_path):
    reader = Reader("iwslt17", "de-en", unpack(write_iwslt(tmp_path / "a"), tmp_path / "b"))
    split = reader.training()
    expected = sentences("de", 6)
    expected[1] += " R&D <b>"  # unescaped after the metadata lines were told apart by their "<"
    assert split.source == expected
    assert [path.name for path in split.files] == ["train.tags.de-en.de", "train.tags.de-en.en"]


def test_iwslt_archive_of_the_other_direction_will_do(tmp_path):
    archives = write_iwslt(tmp_path / "a")
    folder = unpack({"de-en.tgz": archives["de-en.tgz"]}, tmp_path / "b")
    split = Reader("iwslt17", "en-de", folder).training()
    assert split.source[0] == sentences("en", 1)[0]
    assert [path.name for path in split.files] == ["train.tags.de-en.en", "train.tags.de-en.de"]


def test_iwslt_sets_are_joined_and_the_reference_of_tst2016_is_the_other_source(tmp_path):
    reader = Reader("iwslt17", "de-en", unpack(write_iwslt(tmp_path / "a"), tmp_path / "b"))
    split = reader.held_out("--test", ["tst2010", "tst2016"])
    assert len(split.source) == len(split.target) == 3 + 4
    assert split.source[0] == sentences("de", 1, 10)[0] + " & so on"
    assert [path.name for path in split.files[2:]] == [
        "IWSLT17.TED.tst2016.de-en.de.xml",
        "IWSLT17.TED.tst2016.en-de.en.xml",
    ]
    assert len(reader.held_out("--test").source) == 6 * 3  # tst2010 to tst2015


def test_kftt_tokens_and_text(tmp_path):
    folder = unpack(write_kftt(tmp_path / "a"), tmp_path / "b")
    tokenised = Reader("kftt", "en-ja", folder)
    assert tokenised.training().source == [t for i, t in enumerate(tokens("en", sentences("en", 6))) if i != 4]
    split = tokenised.held_out("--dev")
    assert split.target == tokens("ja", sentences("ja", 3))
    assert split.reference == sentences("ja", 3)
    assert len(tokenised.held_out("--dev", ["tune", "dev"]).reference) == 2 + 3
    original = Reader("kftt", "en-ja", folder, original=True)
    assert original.training().source[4] == ""  # both sides are dropped later, together
    assert original.held_out("--test").reference is None


@pytest.mark.parametrize("setimes", ["SETIMES", "SETIMES2"])
def test_wmt16(tmp_path, setimes):
    (tmp_path / "a").mkdir()
    folder = unpack(write_wmt(tmp_path / "a", setimes), tmp_path / "b")
    for direction, source in (("ro-en", "ro"), ("en-ro", "en")):
        reader = Reader("wmt16", direction, folder)
        assert reader.training().source == sentences(source, 9)
        split = reader.held_out("--test")
        expected = sentences(source, 3, 20)
        expected[1] += ' AT&T "x"'
        assert split.source == expected


def test_wmt16_sets_as_plain_text(tmp_path):
    for name in ("newsdev2016", "newstest2016"):
        for language in ("ro", "en"):
            (tmp_path / f"{name}.{language}").write_text("a\nb\n", encoding="utf-8")
    assert Reader("wmt16", "ro-en", tmp_path).held_out("--dev").target == ["a", "b"]


def test_plain_prefixes_unescape_and_blanks(tmp_path):
    for language in ("xx", "yy"):
        (tmp_path / f"one.{language}").write_bytes("a\u2028b\r\n\nc &quot;\n".encode())
        (tmp_path / f"two.{language}").write_bytes(b"d")  # no line feed at the end
    reader = Reader("plain", "xx-yy", tmp_path)
    assert reader.training(["one", "two"]).source == ["a b", "", "c &quot;", "d"]
    assert Reader("plain", "xx-yy", tmp_path, unescape=True).training(["one"]).source[2] == 'c "'
    with pytest.raises(UserError, match="`--dev` is needed with --corpus plain"):
        reader.held_out("--dev")
    with pytest.raises(UserError, match="three.xx: no such file"):
        reader.training(["three"])


def test_segments_may_span_lines_and_stand_together(tmp_path):
    path = tmp_path / "x.sgm"
    path.write_text('<SEG id=1>one\ntwo</SEG><seg id="2"></seg>\n', encoding="utf-8")
    assert read_segments(path) == ["one\ntwo", ""]


@pytest.mark.parametrize(
    "text, message",
    [
        ('<seg id="1">a</seg>\n<seg id="2">b\n<seg id="3">c</seg>\n', "line 2: a <seg> element is not closed"),
        ('<seg id="1">a</seg>\n<seg id="2">b\n', "line 2: a <seg> element is not closed"),
        ("<doc></doc>\n", "no <seg> element"),
    ],
)
def test_broken_segments(tmp_path, text, message):
    path = tmp_path / "x.sgm"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        read_segments(path)


def test_unequal_sides_invalid_text_and_missing_files(tmp_path):
    folder = unpack(write_kftt(tmp_path / "a", leave_out="kftt-data-1.0/data/tok/kyoto-dev.en"), tmp_path / "b")
    reader = Reader("kftt", "ja-en", folder)
    with pytest.raises(UserError, match="lacks the file tok/kyoto-dev.en, which kftt needs"):
        reader.held_out("--dev")
    target = next(folder.rglob("tok/kyoto-train.cln.en"))
    target.write_bytes(target.read_bytes() + b"one more\n")
    with pytest.raises(UserError, match="cln.ja has 5 lines, .*cln.en has 6: both sides need as many"):
        reader.training()
    target.write_bytes(b"fine\nbad \xff\n")
    with pytest.raises(UserError, match=r"kyoto-train.cln.en, line 2: not valid UTF-8"):
        reader.training()


def test_two_copies_of_a_file_are_an_error(tmp_path):
    for part in ("one", "two"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "val.de").write_text("a\n", encoding="utf-8")
    with pytest.raises(UserError, match="val.de is there twice: .*one.*two"):
        Reader("multi30k", "de-en", tmp_path).held_out("--dev")


def test_sides_of_two_folders_are_no_pair(tmp_path):
    for part, side in (("raw", "de"), ("other", "en")):
        (tmp_path / part).mkdir()
        (tmp_path / part / f"train.{side}").write_text("a\n", encoding="utf-8")
    with pytest.raises(UserError, match="raw/train.de and .*other/train.en, which are not a pair"):
        Reader("multi30k", "de-en", tmp_path).training()
    (tmp_path / "other" / "train.de").write_text("b\n", encoding="utf-8")
    (tmp_path / "raw" / "train.de").unlink()
    assert Reader("multi30k", "de-en", tmp_path).training().source == ["b"]


def test_a_folder_that_is_none(tmp_path):
    with pytest.raises(UserError, match="is not a folder"):
        Reader("multi30k", "de-en", tmp_path / "x").training()


@pytest.mark.parametrize(
    "corpus, direction, message",
    [
        ("iwslt17", "de-fr", "`--direction`: de-fr. For iwslt17: Valid choices: de-en, en-de"),
        ("iwslt", "de-en", "`--corpus`: iwslt. Valid choices: iwslt17, kftt, wmt16, multi30k, plain"),
        ("plain", "de-de", "two different languages"),
        ("plain", "deen", "two different languages"),
        ("plain", "../x-en", "two different languages"),
    ],
)
def test_directions(corpus, direction, message):
    with pytest.raises(UserError, match=message):
        split_direction(corpus, direction)


def test_sets_that_do_not_exist(tmp_path):
    with pytest.raises(UserError, match="`--test`: tst2018. For iwslt17: Valid choices: dev2010, tst2010"):
        Reader("iwslt17", "de-en", tmp_path).held_out("--test", ["tst2018"])
    with pytest.raises(UserError, match="it is for --corpus plain"):
        Reader("iwslt17", "de-en", tmp_path).training(["x"])


def real(archive: str, real_data: Path, folder: Path) -> Path:
    subprocess.run(["tar", "xJf", real_data / f"{archive}.tar.xz", "-C", folder], check=True)
    return folder


@pytest.mark.realdata
def test_real_iwslt_xml(real_data, tmp_path):
    folder = real("iwslt17_devtest", real_data, tmp_path)
    (folder / "2017").mkdir()
    for pair in ("de-en", "en-de"):
        archive = folder / f"iwslt17/official_archives/2017-01-ted-test.{pair}.tgz"
        subprocess.run(["tar", "xzf", archive, "-C", folder / "2017"], check=True)
    for shown in list((folder / "iwslt17").glob("official_archives/x")):
        subprocess.run(["rm", "-r", shown], check=True)
    for direction in ("de-en", "en-de"):
        reader = Reader("iwslt17", direction, folder)
        source = direction[:2]
        numbers = {"dev2010": 888, "tst2010": 1568, "tst2013": 993, "tst2016": 1133, "tst2017": 1138}
        for name, number in numbers.items():
            split = reader.held_out("--test", [name])
            plain = read_lines(folder / f"iwslt17/plain/{name}.{source}")
            assert len(split.source) == number
            assert split.source == [" ".join(line.split()) for line in plain]
        assert len(reader.held_out("--test").source) == 8079


@pytest.mark.realdata
def test_real_kftt(real_data, tmp_path):
    folder = real("kftt_rebuilt_train", real_data, real("kftt_official_devtunetest", real_data, tmp_path))
    reader = Reader("kftt", "ja-en", folder)
    for name, number in (("dev", 1166), ("tune", 1235), ("test", 1160)):
        split = reader.held_out("--test", [name])
        assert len(split.source) == len(split.reference) == number
        # the tokens are the text but for blanks: nothing was lost or added
        assert ["".join(line.split()) for line in split.source] == [
            "".join(line.split()) for line in Reader("kftt", "en-ja", folder).held_out("--test", [name]).reference
        ]
    train = Reader("kftt", "ja-en", folder, original=True).training()
    assert len(train.source) == 440_288
    assert [number for number, line in enumerate(train.target, 1) if not line] == [204_446, 339_048]


@pytest.mark.realdata
def test_real_wmt16(real_data, tmp_path):
    folder = real("wmt16_roen", real_data, tmp_path)
    reader = Reader("wmt16", "ro-en", folder)
    assert len(reader.held_out("--dev").source) == len(reader.held_out("--test").target) == 1999
    with pytest.raises(UserError, match=r"lacks the file europarl-v8.ro-en.ro, which wmt16 needs"):
        reader.training()
