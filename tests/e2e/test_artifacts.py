"""What a session keeps outside the conversation, from a cell to the client and to its end."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import PIL.Image
import psutil
import pytest

from tests.e2e.client import MODERN, Client, Message, Refused, wait_gone
from tests.e2e.watch import begin, eventually
from tests.server.test_pictures import image_of

LINES = "".join(f"{number} a line of its own, é\n" for number in range(6_000))
PRINTS = "for number in range(6_000): print(number, 'a line of its own, é')"
PNG = image_of("image/png", (64, 48))


@pytest.fixture
def client() -> Iterator[Client]:
    with Client() as opened:
        yield opened


def shows(content: bytes) -> str:
    """A cell that shows an image."""
    return f"import base64; display(base64.b64decode({base64.b64encode(content).decode()!r}))"


def read_whole(client: Client, artifact_id: str, **arguments: Any) -> bytes:
    """All bytes of an artifact, page by page, as base64."""
    parts = []
    offset: int | None = 0
    while offset is not None:
        page = client.structured(
            "artifact_read", artifact_id=artifact_id, offset=offset, encoding="base64", **arguments
        )
        parts.append(base64.b64decode(page["data"]))
        offset = page["next"]
    return b"".join(parts)


def listed(client: Client, **arguments: Any) -> list[Message]:
    found: list[Message] = client.structured("artifact_list", **arguments)["artifacts"]
    return found


def files_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


# -- output and values -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_long_output_is_kept_whole(client: Client, stream: str) -> None:
    call = client.call("execute_python", code=f"import sys; sys.stdout = sys.{stream}\n{PRINTS}")
    (artifact,) = call["structuredContent"]["artifacts"]
    assert (artifact["name"], artifact["kind"], artifact["complete"]) == (stream, "output", True)
    assert call["structuredContent"]["truncated"][stream] is True
    assert f"artifact_read(artifact_id={artifact['id']!r})" in call["content"][0]["text"]
    whole = read_whole(client, artifact["id"])
    assert whole.decode() == LINES
    assert artifact["size"] == len(whole)
    (entry,) = listed(client)
    assert entry["sha256"] == hashlib.sha256(whole).hexdigest()


def test_the_text_of_long_output_is_read_in_pages(client: Client) -> None:
    (artifact,) = client.execute(PRINTS)["artifacts"]
    seen = ""
    offset: int | None = 0
    while offset is not None:
        page = client.structured("artifact_read", artifact_id=artifact["id"], offset=offset)
        assert page["encoding"] == "text"
        seen, offset = seen + page["data"], page["next"]
    assert seen == LINES


def test_short_output_leaves_nothing(client: Client) -> None:
    assert "artifacts" not in client.execute("print('x' * 20_000); 'y' * 10")
    assert listed(client) == []


def test_the_whole_of_a_shortened_value(client: Client) -> None:
    result = client.execute("'é' * 50_000")
    assert result["truncated"]["return"] is True
    (artifact,) = result["artifacts"]
    assert (artifact["kind"], artifact["media_type"]) == ("value", "text/plain")
    assert read_whole(client, artifact["id"]).decode() == "é" * 50_000


def test_a_stopped_run_keeps_its_output(client: Client) -> None:
    run = begin(client, f"{PRINTS}\nprint('x', flush=True)\nwhile True: pass")
    client.structured("python_cancel")
    result = client.structured("python_run", run_id=run["run_id"], wait=30)
    assert (result["success"], result["state"]) == (False, "preserved")
    assert read_whole(client, result["artifacts"][0]["id"]).startswith(b"begun\n0 a line")


def test_a_dead_worker_leaves_its_output(client: Client) -> None:
    result = client.execute(f"{PRINTS}\nimport os, sys; sys.stdout.flush(); os._exit(3)")
    assert result["state"] == "cleared"
    assert read_whole(client, result["artifacts"][0]["id"]).decode() == LINES


# -- images ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["2024-11-05", "2025-11-25", MODERN])
def test_an_image_comes_as_an_image_and_again(version: str) -> None:
    with Client(version=version) as client:
        session = client.default_session()
        call = client.call("execute_python", code=f"print('before')\n{shows(PNG)}", session_id=session)
        text, block = call["content"]
        assert (block["type"], block["mimeType"]) == ("image", "image/png")
        assert base64.b64decode(block["data"]) == PNG
        assert "image 1: image/png, 64x48" in text["text"]
        (image,) = call["structuredContent"]["images"]
        # The id alone names it, in both eras.
        for tool, arguments in (
            ("python_run", {"run_id": call["structuredContent"]["run_id"]}),
            ("artifact_read", {"artifact_id": image["artifact_id"]}),
        ):
            assert client.call(tool, **arguments)["content"][1] == block


def test_a_large_image_is_told_in_a_few_words_and_read_whole(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "noise.png"
    PIL.Image.frombytes("RGB", (500, 500), os.urandom(750_000)).save(file)
    call = client.call("execute_python", code=f"display(open({str(file)!r}, 'rb').read())")
    assert len(call["content"]) == 1
    assert len(call["content"][0]["text"]) < 500
    (image,) = call["structuredContent"]["images"]
    assert (image["shown"], image["width"], image["height"]) == (False, 500, 500)
    assert "image_bytes" in call["content"][0]["text"]
    assert read_whole(client, image["artifact_id"]) == file.read_bytes()


def test_a_failed_cell_shows_what_it_had(client: Client) -> None:
    call = client.call("execute_python", code=f"{shows(PNG)}\n1 / 0")
    assert call["isError"] is True
    assert call["content"][1]["type"] == "image"


def test_images_of_a_started_run(client: Client) -> None:
    run = client.structured("python_start", code=shows(PNG))
    assert client.call("python_run", run_id=run["run_id"], wait=30)["content"][1]["type"] == "image"


# -- bounds ----------------------------------------------------------------------------------------------------


def test_the_oldest_go_first_and_it_is_said() -> None:
    with Client("--limit", "artifacts=2") as client:
        runs = [client.execute(f"{number}; {shows(PNG)}") for number in range(3)]
        kept = [entry["id"] for entry in listed(client)]
        assert kept == [run["artifacts"][0]["id"] for run in runs[1:]]
        gone = client.call("artifact_read", artifact_id=runs[0]["artifacts"][0]["id"])
        assert (gone["isError"], gone["structuredContent"]["error_code"]) == (True, "UNKNOWN_ARTIFACT")
        assert "oldest go first" in gone["content"][0]["text"]
        again = client.call("python_run", run_id=runs[0]["run_id"])
        assert again["structuredContent"]["artifacts_gone"] == 1
        assert len(again["content"]) == 1
        assert "no longer kept" in again["content"][0]["text"]


def test_one_artifact_is_bounded_and_it_is_said() -> None:
    with Client("--limit", "artifact_bytes=70000") as client:
        call = client.call("execute_python", code=PRINTS)
        (artifact,) = call["structuredContent"]["artifacts"]
        assert (artifact["size"], artifact["complete"]) == (70_000, False)
        assert "the first 70,000 bytes of stdout" in call["content"][0]["text"]
        assert "artifact_bytes" in call["content"][0]["text"]
        assert read_whole(client, artifact["id"]) == LINES.encode()[:70_000]


@pytest.mark.parametrize(
    ("arguments", "pointer"),
    [
        ({}, "/artifact_id"),
        ({"artifact_id": "OURS", "offset": -1}, "/offset"),
        ({"artifact_id": "OURS", "offset": 10**9}, "/offset"),
        ({"artifact_id": "OURS", "length": 0}, "/length"),
        ({"artifact_id": "OURS", "length": 10**9}, "/length"),
        ({"artifact_id": "OURS", "encoding": "utf-7"}, "/encoding"),
    ],
)
def test_a_bad_range_names_its_place(client: Client, arguments: Message, pointer: str) -> None:
    ours = client.execute(shows(PNG))["artifacts"][0]["id"]
    if "artifact_id" in arguments:
        arguments = arguments | {"artifact_id": ours}
    with pytest.raises(Refused) as refused:
        client.call("artifact_read", **arguments)
    assert refused.value.code == -32602
    assert refused.value.message.startswith(f"/params/arguments{pointer}: ")


def test_a_disk_that_takes_no_more() -> None:
    # A bound on the size of files stands for a full disk: the same call fails at the same place.
    small = ["sh", "-c", 'ulimit -f 128; exec "$@"', "sh"]
    with Client(wrap=small) as bounded:
        call = bounded.call("execute_python", code=PRINTS)
        (artifact,) = call["structuredContent"]["artifacts"]
        assert artifact["complete"] is False
        assert artifact["size"] < len(LINES.encode())
        assert "the rest is not kept" in call["content"][0]["text"]
        assert read_whole(bounded, artifact["id"]) == LINES.encode()[: artifact["size"]]
        assert bounded.execute("1 + 1")["value"] == 2


# -- how long --------------------------------------------------------------------------------------------------


def test_a_reset_keeps_them_and_the_end_of_the_session_frees_them(client: Client) -> None:
    server = psutil.Process(client.process.pid)
    client.execute("1")
    before = server.num_fds()
    session = client.structured("python_session_open", name="other")["session_id"]
    artifact = client.execute(PRINTS, session_id=session)["artifacts"][0]["id"]
    assert client.execute("1", session_id=session, reset=True)["generation"] == 2
    assert read_whole(client, artifact).decode() == LINES
    assert [entry["id"] for entry in listed(client, session_id=session)] == [artifact]
    assert listed(client) == [], "each session has its own"
    client.structured("python_session_close", session_id=session)
    gone = client.structured("artifact_read", artifact_id=artifact)
    assert gone["error_code"] == "UNKNOWN_ARTIFACT"
    eventually(lambda: server.num_fds() == before, "the descriptors are those of before")


def test_nothing_has_a_name_and_a_killed_server_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "scratch"
    folder.mkdir()
    with Client(env={"TMPDIR": str(folder)}) as client:
        assert client.execute(PRINTS)["artifacts"][0]["complete"]
        server = psutil.Process(client.process.pid)
        if sys.platform == "linux":
            opened = {os.readlink(link) for link in Path(f"/proc/{server.pid}/fd").iterdir()}
            assert any(name.startswith(str(folder)) for name in opened), "it is where the user wants it"
        assert files_in(folder) == []
        server.kill()
        wait_gone([server])
        assert files_in(folder) == []


def test_many_images_asked_for_in_one_write_all_come(client: Client) -> None:
    file = io.BytesIO()
    PIL.Image.frombytes("RGB", (320, 320), random.Random(1).randbytes(320 * 320 * 3)).save(file, "PNG")
    (client.cwd / "noise.png").write_bytes(file.getvalue())
    shown = client.execute("display(open('noise.png', 'rb').read())")["images"][0]
    assert shown["size"] > 300_000
    requests = [client.start_call("artifact_read", artifact_id=shown["artifact_id"]) for _ in range(40)]
    for request in requests:
        assert [block["type"] for block in client.result(request)["content"]] == ["text", "image"]


def test_pages_of_base64_can_be_joined_as_they_are(client: Client) -> None:
    client.execute("display(b'\\x89PNG\\r\\n\\x1a\\n' + bytes(range(256)) * 300)")
    (artifact,) = listed(client)
    pages = []
    offset: int | None = 0
    while offset is not None:
        page = client.structured("artifact_read", artifact_id=artifact["id"], offset=offset, encoding="base64")
        pages.append(page["data"])
        offset = page["next"]
    assert len(pages) > 3
    assert base64.b64decode("".join(pages), validate=True) == b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 300
