"""Files that processes share: what one writes, another that holds them sees; what has gone is let go."""

from pathlib import Path

import pytest
import torch

from lora_rl.store.shared_file import SharedFiles


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(b"first")
    return path


def overwrite(path: Path, data: bytes) -> None:
    with path.open("r+b") as file:
        file.write(data)


def content(path: Path, files: SharedFiles) -> bytes:
    return files.read(path).numpy().tobytes()


def test_a_file_is_held_from_the_second_time_on(path: Path) -> None:
    files = SharedFiles(lock=False)
    places = []
    for data in (b"first", b"other", b"third"):
        overwrite(path, data)
        assert content(path, files) == data
        places.append(files.read(path).data_ptr())
    assert len(set(places)) == 1
    assert files.hold(path) is files.hold(path)


def test_a_file_that_is_replaced_is_read_anew_and_the_old_one_stays_with_those_who_have_it(path: Path) -> None:
    files = SharedFiles(lock=False)
    old = files.hold(path).bytes_N
    path.unlink()
    path.write_bytes(b"another, longer one")
    assert content(path, files) == b"another, longer one"
    assert old.numpy().tobytes() == b"first"


def test_a_file_that_is_gone_is_let_go(path: Path, tmp_path: Path) -> None:
    files = SharedFiles(lock=False)
    held = files.hold(path)
    path.unlink()
    (tmp_path / "next").write_bytes(b"next")
    files.read(tmp_path / "next")
    assert not hasattr(held, "memory")
    with pytest.raises(FileNotFoundError):
        files.read(path)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_locked_pages_are_read_and_written_by_a_gpu(path: Path) -> None:
    held = SharedFiles(lock=True).hold(path)
    assert held.bytes_N.is_pinned()
    held.bytes_N.copy_(torch.tensor([*b"fifth"], dtype=torch.uint8, device="cuda"))
    assert path.read_bytes() == b"fifth"
    held.close()
