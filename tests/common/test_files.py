"""atomic_write: all or nothing."""

import errno
import os

import pytest

from vizoo.common.files import atomic_write, write_csv


def test_writes_and_leaves_nothing_else(tmp_path):
    target = tmp_path / "new" / "a.txt"
    with atomic_write(target) as temporary:
        assert temporary.parent == target.parent and temporary.suffix == ".txt"
        temporary.write_text("whole")
        assert not target.exists()
    assert target.read_text() == "whole"
    assert [file.name for file in target.parent.iterdir()] == ["a.txt"]


def test_failure_keeps_the_earlier_file(tmp_path):
    target = tmp_path / "a.txt"
    target.write_text("earlier")
    with pytest.raises(RuntimeError, match="stop"), atomic_write(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError("stop")
    assert target.read_text() == "earlier"
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]


def test_an_earlier_file_is_replaced_and_not_written_over(tmp_path):
    """Who reads it meanwhile reads it to its end."""
    target, kept = tmp_path / "a.txt", tmp_path / "b.txt"
    target.write_text("earlier")
    kept.hardlink_to(target)  # as an open file
    with atomic_write(target) as temporary:
        temporary.write_text("whole")
    assert (target.read_text(), kept.read_text()) == ("whole", "earlier")


def test_folder_in_the_way(tmp_path):
    with pytest.raises(IsADirectoryError, match="is a folder"), atomic_write(tmp_path):
        pass
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    for name, reason in (("file", "a file"), ("link", "a link to what is not there")):
        said = f"cannot make the folder .*{reason}.* is in the way"
        with pytest.raises(OSError, match=said), atomic_write(tmp_path / name / "a.txt"):
            pass


def test_a_full_disk_is_said_with_the_name(tmp_path):
    target = tmp_path / "a.npy"
    target.write_text("earlier")
    with pytest.raises(OSError) as caught, atomic_write(target) as temporary:
        temporary.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert caught.value.filename == str(target) and caught.value.errno == errno.ENOSPC
    # NumPy gives a text alone: "4096 requested and 0 written".
    with pytest.raises(OSError, match="a.npy: cannot be written: 4096 requested"):
        with atomic_write(target) as temporary:
            raise OSError("4096 requested and 0 written")
    # pydicom gives a text with a traceback.
    with pytest.raises(OSError, match="No space left on device: .*a.npy'$"):
        with atomic_write(target) as temporary:
            raise OSError("Traceback ...") from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert target.read_text() == "earlier"
    assert [file.name for file in tmp_path.iterdir()] == ["a.npy"]


def test_names_of_files_that_are_no_text_are_escaped(tmp_path):
    """As of an old archive: the table that a long run ends with is not lost."""
    name = os.fsdecode(b"caf\xe9.png")
    write_csv(tmp_path / "all.csv", ["image", "note"], [[name, None], ["ä", "two\nlines"]])
    written = (tmp_path / "all.csv").read_bytes()
    assert written == 'image,note\r\ncaf\\udce9.png,\r\nä,"two\nlines"\r\n'.encode()
