"""List files and the pairing of sorted names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vizoo.vision.io.images import SUFFIXES
from vizoo.vision.io.pairing import doubtful_pairing, files_below, images_in, read_columns

FORM = "left right [more]"
# A name holds no line break and, as there is no escape character, not both kinds of quotes.
LETTERS = st.characters(exclude_characters="\n\r", exclude_categories=["Cs"])
NAMES = st.text(LETTERS, min_size=1, max_size=8).filter(lambda n: not ("'" in n and '"' in n))
BLANKS = st.text(" \t", min_size=1, max_size=3)


def quoted(name: str) -> str:
    mark = "'" if '"' in name else '"'
    return f"{mark}{name}{mark}"


@given(st.lists(st.tuples(NAMES, NAMES, BLANKS), max_size=4))
def test_quoted_names_come_back(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("list") / "pairs.list"
    lines = [f"{quoted(left)}{gap}{quoted(right)}{gap}# {left}" for left, right, gap in rows]
    path.write_text("\n".join(lines), encoding="utf-8", newline="")
    wanted = [(n, [left, right]) for n, (left, right, _) in enumerate(rows, start=1)]
    assert read_columns(path, 2, 2, FORM) == wanted


@given(st.binary(max_size=60))
def test_any_bytes_are_rows_or_one_line(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("list") / "pairs.list"
    path.write_bytes(content)
    try:
        assert all(2 <= len(words) <= 3 for _, words in read_columns(path, 2, 3, FORM))
    except ValueError as error:
        assert str(error).startswith(str(path))


def test_hidden_files_and_contact_sheets_are_no_images(tmp_path):
    for name in ("000.png", "._000.png", ".x.0f.png", "a.txt", "B.JPG", "contact_sheet.jpg"):
        (tmp_path / name).write_text("")
    for folder in ("folder.png", "b", ".b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "1.png").write_text("")
    assert sorted(path.name for path in images_in(tmp_path)) == ["000.png", "B.JPG"]
    below = [path.relative_to(tmp_path).as_posix() for path in files_below(tmp_path, SUFFIXES)]
    assert below == ["000.png", "B.JPG", "b/1.png", "folder.png/1.png"]


def test_rules(tmp_path):
    path = tmp_path / "pairs.list"
    path.write_text(
        "\ufeff# comment\n\n  a.png\tb.png \r\n"
        "don't.png a#b.png # comment\n\"my pictures/l 1.png\" 'r 1.png' c\\d\n"
    )
    assert read_columns(path, 2, 3, FORM) == [
        (3, ["a.png", "b.png"]),
        (4, ["don't.png", "a#b.png"]),
        (5, ["my pictures/l 1.png", "r 1.png", "c\\d"]),
    ]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("a", "line 1: 1 columns; a line reads 'left right"),
        ("a b c d", "line 1: 4 columns"),
        ("a 'b", "line 1: a quote is not closed"),
        ("a 'b'c", "a quote is not closed, or text follows it: 'b'c"),
        ("a ''", "an empty name"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, line, says):
    path = tmp_path / "pairs.list"
    path.write_text(line)
    with pytest.raises(ValueError, match=says):
        read_columns(path, 2, 3, FORM)


def test_no_list(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such list file"):
        read_columns(tmp_path / "none.list", 2, 3, FORM)
    with pytest.raises(ValueError, match="is a folder"):
        read_columns(tmp_path, 2, 3, FORM)


@pytest.mark.parametrize(
    ("left", "other"),
    [
        (["a.png"], ["b.png"]),
        (["left_0001.png", "left_0002.png"], ["right_0001.png", "right_0002.png"]),
        (["cam1/1.png", "cam1/2.png"], ["cam2/1.png", "cam2/2.png"]),
        (["Jade plant/im0.png", "Piano/im0.png"], ["Jade plant/im1.png", "Piano/im1.png"]),
        (["im0/000001_10.png", "im0/000002_10.png"], ["d/000001_10.pfm", "d/000002_10.pfm"]),
        (["1.png", "2.png"], ["0001.png", "0002.png"]),
        (["x/L1.PNG", "x/L2.PNG"], ["y/l1.pfm", "y/l2.pfm"]),
    ],
)
def test_names_that_agree(left, other):
    assert doubtful_pairing(left, other) is None


@pytest.mark.parametrize(
    ("left", "other", "first"),
    [
        (["l/1.png", "l/2.png", "l/3.png"], ["r/1.png", "r/3.png", "r/4.png"], "l/2.png"),
        (["1.png", "10.png", "2.png"], ["0001.png", "0002.png", "0010.png"], "10.png"),
        (["Jade plant/im0.png", "Piano/im0.png"], ["Motor/im1.png", "Piano/im1.png"], "Jade plant"),
    ],
)
def test_names_that_do_not(left, other, first):
    assert doubtful_pairing(left, other).startswith(first)
