"""Which tokens are trained on, how records fill blocks, and the order of blocks."""

import pytest

from foreword.errors import InvalidRequest
from foreword_train.data.packing import Block, Encoder, Packer, Piece, Place, stack
from foreword_train.data.records import Record
from running import tokenizer

CHAT = Record(
    turns=(
        ("user", "Hi"),
        ("assistant", "Hello there"),
        ("user", "Bye"),
        ("assistant", "So long"),
    )
)
END = 0


def encoder() -> Encoder:
    return Encoder(tokenizer(), frozenset([END]))


def learnt(piece: Piece) -> str:
    return tokenizer().decode(
        [t for t, flag in zip(piece.tokens, piece.learnt, strict=True) if flag]
    )


def test_only_answers_and_their_ends_are_learnt():
    piece = encoder()(CHAT)
    whole = tokenizer().apply_chat_template(CHAT.messages, tokenize=False)
    assert tokenizer().decode(piece.tokens) == whole
    assert learnt(piece) == "Hello there<|end|>So long<|end|>"


def test_prompt_is_the_input_of_the_target():
    prompt = tokenizer().apply_chat_template(
        CHAT.messages[:1], add_generation_prompt=True, return_dict=True
    )
    assert encoder().prompt(CHAT) == prompt["input_ids"]
    text = Record(text="one two three four five six seven eight")
    assert encoder().prompt(text) == encoder()(text).tokens[: len(encoder()(text)) // 4]


def test_cut_answer_has_no_end():
    piece = encoder()(Record(turns=CHAT.turns, cut=True))
    assert learnt(piece) == "Hello there<|end|>So long"
    assert piece.learnt[-1]


def test_text_is_learnt_with_its_end():
    assert learnt(encoder()(Record(text="Once upon"))) == "Once upon<|end|>"
    assert learnt(encoder()(Record(text="Once upon", cut=True))) == "Once upon"


def test_turns_that_the_template_rewrites_are_not_learnt(monkeypatch):
    forgetful = (
        "{% for m in messages %}{{ m['role'] }}:{% if loop.last or m['role'] == 'user' "
        "%}{{ m['content'] }}{% endif %}"
        "<|end|>{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
    )
    monkeypatch.setattr(tokenizer(), "chat_template", forgetful)
    assert learnt(encoder()(CHAT)) == "So long<|end|>"


def test_messages_need_a_template(monkeypatch):
    monkeypatch.setattr(tokenizer(), "chat_template", None)
    with pytest.raises(InvalidRequest, match="no chat template"):
        encoder()(CHAT)


class Texts:
    """Stands where an encoder stands: each character is a token."""

    def __call__(self, record: Record) -> Piece:
        return Piece([ord(letter) for letter in record.text], [True] * len(record.text))


def packer(*texts: str, length: int = 8, seed: int = 0) -> Packer:
    return Packer(Texts(), [Record(text=text) for text in texts], length, seed)


def shown(block: Block) -> list[str]:
    """The pieces of a block as text."""
    return ["".join(map(chr, piece.tokens)) for piece in block.pieces]


def dealt(
    packer: Packer, blocks: int, place: Place | None = None
) -> tuple[list[list[str]], list[Place]]:
    found, places = [], [place or Place()]
    for _ in range(blocks):
        block, place = packer.next(places[-1])
        found.append(shown(block))
        places.append(place)
    return found, places


def test_piece_begins_at_position_0_after_nothing():
    block = Block.of([Piece([5, 6, 7], [True] * 3), Piece([8, 9], [False, True])], 7)
    assert block.tokens.tolist() == [5, 6, 7, 8, 9, 0, 0]
    assert block.positions.tolist() == [0, 1, 2, 0, 1, 0, 1]
    assert block.learnt.tolist() == [False, True, True, False, True, False, False]
    assert stack([block, block]).tokens.shape == (2, 7)


def test_an_epoch_holds_each_record_once():
    found, places = dealt(packer("abc", "def", "gh", "ijklm", "nopq"), 3)
    texts = sorted(text for block in found for text in block)
    assert texts == "abc def gh ijklm nopq".split()
    assert all(sum(map(len, block)) <= 8 for block in found)
    assert places[-1] == Place(epoch=1)


def test_long_record_is_cut_without_loss():
    text = "abcdefghijklmnopqrstuvw"
    found, places = dealt(packer(text), 3)
    assert found == [[text[:8]], [text[8:16]], [text[16:]]]
    assert [place.offset for place in places] == [0, 8, 16, 0]


def test_blocks_continue_from_any_place():
    texts = [letter * size for size, letter in enumerate("abcdefghijklmnop", 2)]
    whole, places = dealt(packer(*texts), 30)
    for start in range(30):
        rest, _ = dealt(packer(*texts), 30 - start, places[start])
        assert rest == whole[start:]
    assert places[-1].epoch >= 1


def test_epochs_and_seeds_shuffle_differently():
    texts = [letter * 8 for letter in "abcdefghijklmnop"]
    first, second = (
        dealt(packer(*texts), 16, Place(epoch=epoch))[0] for epoch in (0, 1)
    )
    other, _ = dealt(packer(*texts, seed=1), 16)
    assert sorted(first) == sorted(second) == sorted(other)
    assert first not in (second, other)
    assert [shown(block) for block in packer(*texts).all(5)] == first[:5]
