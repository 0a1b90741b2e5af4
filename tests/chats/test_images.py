"""Images of messages: every form gives the same picture; what is none is refused."""

import base64
import io
import os

import pytest
from PIL import Image

from asking import assistant, part, user
from foreword import InvalidRequest
from foreword.chats import conversation, image_of, image_reader, images_of
from foreword.chats import images as limits
from tiny_vision import picture

PICTURE = picture(40, 24)


def png(image: Image.Image = PICTURE, kind: str = "PNG", **more) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **more)
    return out.getvalue()


BASE64 = base64.b64encode(png()).decode()
URL = f"data:image/png;base64,{BASE64}"


SHOT = {"type": "image_url", "image_url": URL}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "image.png"
    path.write_bytes(png())
    return path


def shot(url: object) -> dict[str, object]:
    return {"type": "image_url", "image_url": url}


def source(**of: str) -> dict[str, object]:
    """Return a part as clients of Anthropic write it."""
    return {"type": "image", "source": of}


ANTHROPIC = {"type": "base64", "media_type": "image/png", "data": BASE64}
FORMS = {
    "picture": PICTURE,
    "bytes": png(),
    "base64": BASE64,
    "data URL": URL,
    "part: picture": {"type": "image", "image": PICTURE},
    "part: bytes": {"type": "image", "image": png()},
    "part: URL": {"type": "image", "url": URL},
    "part: base64": {"type": "image", "base64": BASE64},
    "OpenAI": shot({"url": URL}),
    "OpenAI, short": shot(URL),
    "responses": {"type": "input_image", "image_url": URL},
    "Anthropic": source(**ANTHROPIC),
}


@pytest.mark.parametrize("part", FORMS.values(), ids=FORMS)
def test_every_form_gives_the_same_picture(part):
    for files in (True, False):
        assert image_of(part, files=files).tobytes() == PICTURE.tobytes()


def test_a_path_is_read_unless_files_are_refused(file):
    named = {"type": "image", "image": str(file)}
    for form in (file, str(file), named, {"type": "image", "path": file}):
        assert image_of(form).tobytes() == PICTURE.tobytes()
        with pytest.raises(InvalidRequest, match=r"cannot read an image"):
            image_of(part, files=False)


def test_a_picture_is_turned_upright_and_loses_its_alpha():
    turned = PICTURE.copy()
    exif = turned.getexif()
    exif[0x0112] = 6
    upright = image_of(png(turned, "JPEG", exif=exif))
    upright.load()
    assert (upright.size, upright.mode) == ((24, 40), "RGB")
    assert image_of(png(PICTURE.convert("RGBA"))).mode == "RGB"
    assert image_of(PICTURE.convert("L")).mode == "RGB"


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ("/there/is/none.png", "no such file exists"),
        (b"no image", "are no image"),
        (b"", "are no image"),
        (png()[:-60], "it is damaged"),
        (png(kind="JPEG")[:300], "it is damaged"),
        ("data:image/png;base64,????", "not base64"),
        ("data:image/png,abc", "not in base64"),
        ("https://example.org/a.png", "nothing is loaded from the network"),
        ("HTTP://example.org/a.png", "nothing is loaded from the network"),
        (shot({"url": "http://localhost/a.png"}), "nothing is loaded from the network"),
        (source(type="url", url="https://example.org"), "nothing is loaded from"),
        (source(type="file", file_id="7"), "is not served"),
        ({"type": "image"}, "its part holds none"),
        ({"type": "image", "image": 7}, "it is given as 7"),
        (None, "it is given as None"),
    ],
    ids=str,
)
def test_what_is_no_image_is_refused_by_name(part, why):
    with pytest.raises(InvalidRequest, match=why) as refused:
        image_of(part).load()
    assert str(refused.value).startswith("cannot read ")


def test_small_file_of_a_huge_image_is_refused_undecoded():
    for width, height in ((20_000, 20_000), (9_000, 9_000)):
        bomb = png(Image.new("1", (width, height)))
        assert len(bomb) < 100_000
        with pytest.raises(InvalidRequest, match=r"pixels|bomb"):
            image_of(bomb)


@pytest.mark.parametrize(
    ("size", "why"),
    [
        ((8193, 8193), "the limit is 67108864"),
        ((400, 33_000), "the limit of a side is 32768"),
        ((30_000, 200), "one side may be 100 times as long as the other"),
        ((1, 101), "one side may be 100 times as long as the other"),
    ],
    ids=str,
)
def test_sides_are_bounded_before_pixels_are_decoded(size, why):
    damaged = png(Image.new("1", size))[:60]
    with pytest.raises(InvalidRequest, match=f"has {size[0]} × {size[1]} pixels, and"):
        image_of(damaged)
    with pytest.raises(InvalidRequest, match=why):
        image_of(Image.new("1", size))


def test_pixels_of_a_prompt_are_bounded_before_they_are_decoded():
    damaged = png(Image.new("1", (8000, 8000)))[:60]
    read = image_reader()
    for _ in range(2):
        read(damaged)
    with pytest.raises(InvalidRequest, match="have 192000000 pixels, and the limit"):
        read(damaged)
    with pytest.raises(InvalidRequest, match="it is damaged"):
        image_of(damaged).load()


def test_image_is_decoded_once_its_pixels_are_used():
    image = image_of(png())
    assert (image.size, image.mode, image._im) == (PICTURE.size, "RGB", None)
    assert image.decoded().tobytes() == PICTURE.tobytes()
    assert image._im is None
    assert image.resize((4, 4)).tobytes() == PICTURE.resize((4, 4)).tobytes()
    assert image._im is not None


def test_a_huge_file_is_not_read(tmp_path):
    path = tmp_path / "huge.png"
    with path.open("wb") as out:
        os.truncate(out.fileno(), limits.MOST_BYTES + 1)
    with pytest.raises(InvalidRequest, match=f"the limit is {limits.MOST_BYTES}"):
        image_of(path)


def test_a_prompt_holds_so_many_images():
    read = image_reader()
    for _ in range(limits.MOST_IMAGES):
        read(PICTURE)
    with pytest.raises(InvalidRequest, match="cannot read more than 64 images"):
        read(PICTURE)


def test_images_stay_in_place_and_in_messages_of_users():
    content = [part("a"), SHOT, part("b")]
    turns = conversation([{"role": "user", "content": content}], image_reader())
    assert [part["type"] for part in turns[0]["content"]] == ["text", "image", "text"]
    assert images_of(turns) == 1
    for role in ("system", "assistant"):
        with pytest.raises(InvalidRequest, match=f"role '{role}' holds no images"):
            conversation([{"role": role, "content": content}], image_reader())
    with pytest.raises(InvalidRequest, match="type 'image_url' is not served"):
        conversation([{"role": "user", "content": content}])


def result(*parts: object, call: str = "a") -> dict[str, object]:
    return {"role": "tool", "tool_call_id": call, "content": [*parts]}


def test_images_of_a_tool_come_before_the_next_words_of_the_user():
    results = [result(part("done"), SHOT), result(SHOT, call="b")]
    turns = conversation([*results, user("What is it?")], image_reader())
    first, second, asked = turns
    assert first["content"] == "done\n[its image follows]"
    assert second["content"] == "[its image follows]"
    kinds = [part["type"] for part in asked["content"]]
    assert kinds == ["image", "image", "text"]
    assert asked["content"][-1] == part("What is it?")


@pytest.mark.parametrize("after", [[], [assistant("A cat.")]])
def test_images_of_a_tool_have_a_message_of_their_own_without_such_words(after):
    turns = conversation([result(SHOT), *after], image_reader())
    roles = [turn["role"] for turn in turns]
    assert roles == ["tool", "user", *(turn["role"] for turn in after)]
    assert [part["type"] for part in turns[1]["content"]] == ["image"]


def test_a_line_of_text_stands_for_the_image_of_a_tool():
    (blind,) = conversation([result(part("shot"), SHOT)])
    assert blind["content"] == "shot\n[an image, which this model cannot see]"
    far = result(shot("https://somewhere/a.png"))
    (unread,) = conversation([far], image_reader())
    assert unread["content"] == blind["content"].removeprefix("shot\n")


def test_a_long_thread_forgets_the_oldest_images_of_tools():
    numbers = range(limits.MOST_IMAGES + 1)
    shots = [result(part(str(number)), SHOT) for number in numbers]
    turns = conversation([user([SHOT]), *shots], image_reader())
    assert images_of(turns) == limits.MOST_IMAGES
    texts = [turn["content"] for turn in turns if turn["role"] == "tool"]
    assert texts[:2] == ["0\n[an earlier image]", "1\n[an earlier image]"]
    assert texts[2] == "2\n[its image follows]"


def test_parts_of_another_host_are_text_in_what_assistants_and_tools_said():
    audio = {"type": "output_audio", "transcript": "hello", "data": "A" * 9000}
    data = "[9000 characters of data]"
    shown = f'[output_audio] {{"transcript": "hello", "data": "{data}"}}'
    for role in ("assistant", "tool"):
        (turn,) = conversation([{"role": role, "content": [audio]}])
        assert turn["content"] == shown
    with pytest.raises(InvalidRequest, match="a part of type 'output_audio'"):
        conversation([{"role": "user", "content": [audio]}])
