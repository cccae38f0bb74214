"""What the ends of an image say, judged against a library that decodes them."""

from __future__ import annotations

import io

import PIL.Image
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl_trio.server.pictures import TRAILER, dimensions, is_shown, is_whole

FORMATS = {"image/png": "PNG", "image/jpeg": "JPEG", "image/gif": "GIF", "image/webp": "WEBP"}
SIZES = [(1, 1), (640, 480), (3, 700)]

each_kind = pytest.mark.parametrize("media_type", FORMATS)


def image_of(media_type: str, size: tuple[int, int] = (40, 30), **options: object) -> bytes:
    file = io.BytesIO()
    PIL.Image.new("RGB", size, (200, 30, 30)).save(file, FORMATS[media_type], **options)
    return file.getvalue()


@each_kind
@pytest.mark.parametrize("size", SIZES)
def test_dimensions_are_the_decoders(media_type: str, size: tuple[int, int]) -> None:
    assert is_shown(media_type)
    assert dimensions(media_type, image_of(media_type, size)) == size


@pytest.mark.parametrize(
    "content",
    [
        image_of("image/webp", (300, 200), lossless=True),
        image_of("image/webp", (300, 200), exif=b"Exif\x00\x00MM\x00*\x00\x00\x00\x08\x00\x00"),
    ],
    ids=["lossless", "extended"],
)
def test_each_form_of_webp(content: bytes) -> None:
    assert dimensions("image/webp", content) == (300, 200)


def test_a_jpeg_with_much_before_its_frame() -> None:
    content = image_of("image/jpeg", (300, 200), comment=b"x" * 30_000, progressive=True)
    assert dimensions("image/jpeg", content) == (300, 200)


@each_kind
def test_another_kind_is_not_taken_for_it(media_type: str) -> None:
    for other in FORMATS:
        assert (dimensions(media_type, image_of(other)) is None) is (other != media_type)


@given(st.sampled_from(sorted(FORMATS)), st.binary(max_size=40), st.integers(0, 400))
def test_no_bytes_are_too_strange(media_type: str, noise: bytes, cut: int) -> None:
    for header in (noise, image_of(media_type)[:cut], image_of(media_type)[:12] + noise):
        found = dimensions(media_type, header)
        assert found is None or min(found) > 0


@each_kind
def test_half_of_an_image_is_none(media_type: str) -> None:
    content = image_of(media_type, (400, 400))
    assert is_whole(media_type, content, content[-TRAILER:], len(content))
    half = content[: len(content) // 2]
    assert not is_whole(media_type, half, b"\x00" * 10, len(half))


@pytest.mark.parametrize("media_type", ["image/svg+xml", "image/bmp", "text/html", ""])
def test_other_kinds_are_not_shown(media_type: str) -> None:
    assert not is_shown(media_type)
    assert dimensions(media_type, b"<svg>") is None


def test_a_gif_ends_with_its_mark_and_not_just_somewhere_near() -> None:
    whole = image_of("image/gif")
    for content, wanted in ((whole, True), (whole + b"\0\0", True), (whole[:-1], False), (whole[:-1] + b";x", False)):
        assert is_whole("image/gif", content[:64], content[-TRAILER:], len(content)) is wanted
