"""The bundled data set: format, split, literal forms, and that its script reproduces it and refuses bad lists."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parents[2] / "data"
SCRIPT = DATA / "build_inflection.py"
SIDES = ("train", "dev", "test")
NAMES = [f"{language}-{side}" for language in ("english", "spanish") for side in SIDES]

ENGLISH_TAGS = ("V;NFIN", "V;3;SG;PRS", "V;PST", "V;V.PTCP;PST", "V;V.PTCP;PRS")

# third person, past, past participle, present participle; written by hand, not taken from the output of the script
ENGLISH = """
panic panics panicked panicked panicking
picnic picnics picnicked picnicked picnicking
arc arcs arced arced arcing
die dies died died dying
lie lies lay lain lying
untie unties untied untied untying
dye dyes dyed dyed dyeing
eye eyes eyed eyed eyeing
hoe hoes hoed hoed hoeing
canoe canoes canoed canoed canoeing
agree agrees agreed agreed agreeing
see sees saw seen seeing
flee flees fled fled fleeing
singe singes singed singed singeing
argue argues argued argued arguing
queue queues queued queued queuing
prefer prefers preferred preferred preferring
offer offers offered offered offering
differ differs differed differed differing
occur occurs occurred occurred occurring
visit visits visited visited visiting
commit commits committed committed committing
travel travels traveled traveled traveling
control controls controlled controlled controlling
equip equips equipped equipped equipping
quiz quizzes quizzed quizzed quizzing
buzz buzzes buzzed buzzed buzzing
waltz waltzes waltzed waltzed waltzing
fix fixes fixed fixed fixing
snow snows snowed snowed snowing
pour pours poured poured pouring
watch watches watched watched watching
stomach stomachs stomached stomached stomaching
veto vetoes vetoed vetoed vetoing
radio radios radioed radioed radioing
satisfy satisfies satisfied satisfied satisfying
play plays played played playing
pay pays paid paid paying
be is was been being
have has had had having
go goes went gone going
undergo undergoes underwent undergone undergoing
begin begins began begun beginning
forget forgets forgot forgotten forgetting
babysit babysits babysat babysat babysitting
broadcast broadcasts broadcast broadcast broadcasting
draw draws drew drawn drawing
withdraw withdraws withdrew withdrawn withdrawing
know knows knew known knowing
write writes wrote written writing
swim swims swam swum swimming
"""

# in the order of the table of data/README.md; written by hand, not taken from the output of the script
SPANISH = """
hablar hablo habla hablamos hablé habló hablaba hablaré hable hablemos hablando hablado
beber bebo bebe bebemos bebí bebió bebía beberé beba bebamos bebiendo bebido
vivir vivo vive vivimos viví vivió vivía viviré viva vivamos viviendo vivido
buscar busco busca buscamos busqué buscó buscaba buscaré busque busquemos buscando buscado
pagar pago paga pagamos pagué pagó pagaba pagaré pague paguemos pagando pagado
cruzar cruzo cruza cruzamos crucé cruzó cruzaba cruzaré cruce crucemos cruzando cruzado
averiguar averiguo averigua averiguamos averigüé averiguó averiguaba averiguaré averigüe averigüemos averiguando averiguado
proteger protejo protege protegemos protegí protegió protegía protegeré proteja protejamos protegiendo protegido
distinguir distingo distingue distinguimos distinguí distinguió distinguía distinguiré distinga distingamos distinguiendo distinguido
vencer venzo vence vencemos vencí venció vencía venceré venza venzamos venciendo vencido
conocer conozco conoce conocemos conocí conoció conocía conoceré conozca conozcamos conociendo conocido
mecer mezo mece mecemos mecí meció mecía meceré meza mezamos meciendo mecido
cocer cuezo cuece cocemos cocí coció cocía coceré cueza cozamos cociendo cocido
construir construyo construye construimos construí construyó construía construiré construya construyamos construyendo construido
leer leo lee leemos leí leyó leía leeré lea leamos leyendo leído
gruñir gruño gruñe gruñimos gruñí gruñó gruñía gruñiré gruña gruñamos gruñendo gruñido
teñir tiño tiñe teñimos teñí tiñó teñía teñiré tiña tiñamos tiñendo teñido
empezar empiezo empieza empezamos empecé empezó empezaba empezaré empiece empecemos empezando empezado
sentir siento siente sentimos sentí sintió sentía sentiré sienta sintamos sintiendo sentido
pedir pido pide pedimos pedí pidió pedía pediré pida pidamos pidiendo pedido
seguir sigo sigue seguimos seguí siguió seguía seguiré siga sigamos siguiendo seguido
corregir corrijo corrige corregimos corregí corrigió corregía corregiré corrija corrijamos corrigiendo corregido
colgar cuelgo cuelga colgamos colgué colgó colgaba colgaré cuelgue colguemos colgando colgado
avergonzar avergüenzo avergüenza avergonzamos avergoncé avergonzó avergonzaba avergonzaré avergüence avergoncemos avergonzando avergonzado
morir muero muere morimos morí murió moría moriré muera muramos muriendo muerto
jugar juego juega jugamos jugué jugó jugaba jugaré juegue juguemos jugando jugado
adquirir adquiero adquiere adquirimos adquirí adquirió adquiría adquiriré adquiera adquiramos adquiriendo adquirido
enviar envío envía enviamos envié envió enviaba enviaré envíe enviemos enviando enviado
cambiar cambio cambia cambiamos cambié cambió cambiaba cambiaré cambie cambiemos cambiando cambiado
continuar continúo continúa continuamos continué continuó continuaba continuaré continúe continuemos continuando continuado
prohibir prohíbo prohíbe prohibimos prohibí prohibió prohibía prohibiré prohíba prohibamos prohibiendo prohibido
aullar aúllo aúlla aullamos aullé aulló aullaba aullaré aúlle aullemos aullando aullado
conducir conduzco conduce conducimos conduje condujo conducía conduciré conduzca conduzcamos conduciendo conducido
escribir escribo escribe escribimos escribí escribió escribía escribiré escriba escribamos escribiendo escrito
volver vuelvo vuelve volvemos volví volvió volvía volveré vuelva volvamos volviendo vuelto
ser soy es somos fui fue era seré sea seamos siendo sido
ir voy va vamos fui fue iba iré vaya vayamos yendo ido
haber he ha hemos hube hubo había habré haya hayamos habiendo habido
tener tengo tiene tenemos tuve tuvo tenía tendré tenga tengamos teniendo tenido
obtener obtengo obtiene obtenemos obtuve obtuvo obtenía obtendré obtenga obtengamos obteniendo obtenido
deshacer deshago deshace deshacemos deshice deshizo deshacía desharé deshaga deshagamos deshaciendo deshecho
prever preveo prevé prevemos preví previó preveía preveré prevea preveamos previendo previsto
oír oigo oye oímos oí oyó oía oiré oiga oigamos oyendo oído
caer caigo cae caemos caí cayó caía caeré caiga caigamos cayendo caído
"""  # noqa: E501


def rows(name: str) -> list[list[str]]:
    text = (DATA / "inflection" / name).read_bytes().decode("utf-8")
    assert text.endswith("\n") and "\r" not in text
    return [line.split("\t") for line in text[:-1].split("\n")]


def lemmas(name: str) -> set[str]:
    return {row[0] for row in rows(name)}


def forms(language: str) -> dict[str, list[str]]:
    """Forms by lemma, in the order of the rows, over all three sides."""
    found: dict[str, list[str]] = {}
    for side in SIDES:
        for lemma, form, _ in rows(f"{language}-{side}"):
            found.setdefault(lemma, []).append(form)
    return found


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("build_inflection", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def lists(tmp_path) -> Path:
    return Path(shutil.copytree(DATA / "lists", tmp_path / "lists"))


@pytest.mark.parametrize("name", NAMES)
def test_every_row_has_three_fields_without_stray_blanks(name):
    for row in rows(name):
        assert len(row) == 3 and all(row), row
        assert not any(character.isspace() for field in row for character in field), row


@pytest.mark.parametrize("name", NAMES)
def test_no_row_twice_and_one_form_per_cell(name):
    cells = Counter((lemma, tags) for lemma, _, tags in rows(name))
    assert set(cells.values()) == {1}


@pytest.mark.parametrize("side", SIDES)
def test_five_forms_per_english_lemma(side):
    tags: dict[str, list[str]] = {}
    for lemma, _, tag in rows(f"english-{side}"):
        tags.setdefault(lemma, []).append(tag)
    assert set(map(tuple, tags.values())) == {ENGLISH_TAGS}


@pytest.mark.parametrize("language", ["english", "spanish"])
def test_sides_share_no_lemma_and_a_tenth_is_held_out(language):
    train, dev, test = (lemmas(f"{language}-{side}") for side in SIDES)
    assert not train & dev and not train & test and not dev & test
    total = len(train | dev | test)
    assert 0.08 < len(dev) / total < 0.12 and 0.08 < len(test) / total < 0.12


@pytest.mark.parametrize("name", NAMES)
def test_every_side_has_regular_and_irregular_verbs(name):
    language = name.partition("-")[0]
    listed = {
        kind: {
            line.partition("\t")[0]
            for line in (DATA / "lists" / f"{language}-{kind}.tsv").read_text(encoding="utf-8").split("\n")
        }
        for kind in ("regular", "irregular")
    }
    for kind, verbs in listed.items():
        assert len(verbs & lemmas(name)) >= 4, kind


def test_draw_is_unseen_and_its_models_are_seen():
    train, dev, test = (lemmas(f"english-{side}") for side in SIDES)
    assert {"draw", "withdraw"} <= test
    assert not any(lemma.endswith("draw") for lemma in train | dev)
    assert {"know", "blow", "grow", "throw"} <= train


@pytest.mark.parametrize(
    "family",
    [("stand", "understand", "withstand", "misunderstand"), ("come", "become", "overcome"), ("take", "mistake")],
)
def test_families_stay_together(family):
    assert sum(bool(set(family) & lemmas(f"english-{side}")) for side in SIDES) == 1


@pytest.mark.parametrize("line", ENGLISH.strip().split("\n"))
def test_english_forms(line):
    lemma, *expected = line.split(" ")
    assert forms("english")[lemma] == [lemma, *expected]


@pytest.mark.parametrize("line", SPANISH.strip().split("\n"))
def test_spanish_forms(line):
    lemma, *expected = line.split(" ")
    assert forms("spanish")[lemma] == expected


def test_tables_above_are_long_enough():
    assert len(ENGLISH.strip().split("\n")) >= 40 and len(SPANISH.strip().split("\n")) >= 40


def test_rebuilding_reproduces_the_files(tmp_path):
    run = subprocess.run([sys.executable, SCRIPT, "--output", tmp_path / "new"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(NAMES)
    for name in NAMES:
        assert (tmp_path / "new" / name).read_bytes() == (DATA / "inflection" / name).read_bytes(), name


def test_readme_states_the_counts_of_the_files():
    readme = (DATA / "README.md").read_text(encoding="utf-8")
    for name in NAMES:
        assert f"| `{name}` | {len(lemmas(name))} | {len(rows(name)):,} |" in readme


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("english-regular.tsv", "walk\ttriple", "unknown mark triple; valid: double, keep-e, plain-s"),
        ("english-regular.tsv", "work", "work stands in the lists twice"),
        ("english-irregular.tsv", "sneak\tsnuck", "sneak needs a past and a past participle"),
        ("english-irregular.tsv", "outsit\toutsat\toutsat\tsitt", "family sitt of outsit must be a verb of that list"),
        ("spanish-changing.tsv", "ahogar\to>oo", "unknown change o>oo; valid: e>ie"),
        ("spanish-changing.tsv", "cantar\to>ue", "no o in the stem cant-"),
        ("spanish-changing.tsv", "amars", "amars does not end in ar, er, ir"),
        ("spanish-irregular.tsv", "reponer\tpuner", "reponer is no prefix and verb of the lines above"),
        ("spanish-regular.tsv", "amar\tamar\tx", "expected a lemma and at most 2 fields, got 3"),
        ("pinned.tsv", "english\tbe\tvalid", "sides: train, dev, test"),
        ("pinned.tsv", "english\tbee\ttest", "no english family bee"),
    ],
)
def test_bad_lists_are_refused_and_nothing_is_written(
    script, lists, tmp_path, capsys, monkeypatch, name, line, message
):
    with open(lists / name, "a", encoding="utf-8", newline="\n") as file:
        file.write(line + "\n")
    monkeypatch.setattr(sys, "argv", ["build_inflection.py", "--lists", str(lists), "--output", str(tmp_path / "new")])
    assert script.main() == 2
    error = capsys.readouterr().err
    assert message in error and name in error and error.count("\n") == 1
    assert not (tmp_path / "new").exists()
