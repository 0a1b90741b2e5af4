"""Tiny random vision-language models of each family, a real processor, and pictures."""

import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from PIL import Image, ImageDraw
from tokenizers.pre_tokenizers import ByteLevel

from asking import assistant, part, user
from folders import kept
from foreword import LLM, Completion, SamplingParams
from foreword.model import Model
from foreword.model.kv.prefixes import PAGE
from tiny_models import disturb, of_bytes
from tiny_sizes import FULL, NO_ENDS, SLIDING, sizes

VOCAB = 320
SIZES: dict[str, Any] = sizes(64, 96, 4, 2, 3, head_dim=16, **NO_ENDS) | dict(
    pad_token_id=0,
    vocab_size=VOCAB,
    max_position_embeddings=2048,
    initializer_range=0.3,
    tie_word_embeddings=False,
)
TURNS = (
    "{%% for m in messages %%}<{{ m.role }}>{%% if m.content is string %%}{{ m.content "
    "}}{%% else %%}"
    "{%% for p in m.content %%}{%% if p.type == 'image' %%}%s{%% else %%}{{ p.text "
    "}}{%% endif %%}{%% endfor %%}"
    "{%% endif %%}{%% endfor %%}{%% if add_generation_prompt %%}<assistant>{%% endif "
    "%%}"
)
"""A chat template; %s is what stands for an image."""


@dataclass(frozen=True)
class Family:
    """How a model of a family is built, and its image processor."""

    config: Callable[[dict[str, int]], hf.PreTrainedConfig]
    """Token ids by name -> config."""
    image_processor: Callable[[], Any]
    processor: str
    template: str = TURNS % "<image>"
    tokens: dict[str, str] = field(default_factory=lambda: {"image_token": "<image>"})
    """Special tokens, as attributes of the tokenizer."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the processor."""


Ids = dict[str, int]
QWEN = ("image_token", "video_token", "vision_start_token", "vision_end_token")
GEMMA = ("image_token", "boi_token", "eoi_token")
_CLIP: dict[str, Any] = sizes(
    32, 48, 2, layers=3, image_size=32, patch_size=8, initializer_range=0.3
)
_QWEN_VISION = dict(
    depth=2, num_heads=2, patch_size=4, spatial_merge_size=2, temporal_patch_size=2
)
_WIDER = dict(hidden_size=32, out_hidden_size=64, intermediate_size=48)


def _config(
    kind: Any, ids: Ids, text: Any, vision: Any, named: Sequence[str] = (), **rest: Any
) -> hf.PreTrainedConfig:
    """Return the config of a kind, with the ids of its tokens: of an image at least."""
    for name in named or ("image_token",):
        rest[f"{name}_id"] = ids.get(name) or ids[name.removesuffix("_token")]
    parts = dict(text_config=text, vision_config=vision)
    return kind(**parts, tie_word_embeddings=False, **rest)


def _qwen(kind: Any, ids: Ids, sections: list[int], vision: Any, **rope: Any) -> Any:
    rope |= dict(rope_type="default", rope_theta=10000.0, mrope_section=sections)
    text = dict(SIZES, rope_parameters=rope)
    return _config(kind, ids, text, {**_QWEN_VISION, **vision}, QWEN)


def _qwen2_vl(ids: Ids) -> Any:
    vision = dict(embed_dim=32, hidden_size=64, mlp_ratio=2, initializer_range=0.3)
    return _qwen(hf.Qwen2VLConfig, ids, [2, 3, 3], vision)


def _tied(ids: Ids) -> Any:
    config = _qwen2_vl(ids)
    config.tie_word_embeddings = config.text_config.tie_word_embeddings = True
    return config


def _qwen2_5_vl(ids: Ids) -> Any:
    vision = dict(_WIDER, window_size=16, fullatt_block_indexes=[1])
    return _qwen(hf.Qwen2_5_VLConfig, ids, [2, 3, 3], vision)


def _qwen3_vl(ids: Ids) -> Any:
    vision = dict(_WIDER, depth=3, num_position_embeddings=64)
    vision["deepstack_visual_indexes"] = [0, 2]
    return _qwen(hf.Qwen3VLConfig, ids, [3, 3, 2], vision, mrope_interleaved=True)


def _llava(kind: Any, ids: Ids, **rest: Any) -> Any:
    vision = hf.CLIPVisionConfig(**_CLIP, projection_dim=32)
    text = hf.LlamaConfig(**SIZES)
    return _config(kind, ids, text, vision, image_seq_length=16, **rest)


def _llava_onevision(ids: Ids) -> Any:
    text, vision = hf.Qwen2Config(**SIZES), hf.SiglipVisionConfig(**_CLIP)
    named, grids = ("image_token", "video_token"), dict(image_grid_pinpoints=GRIDS)
    return _config(hf.LlavaOnevisionConfig, ids, text, vision, named, **grids)


def _idefics(kind: Any, ids: Ids) -> Any:
    text = hf.LlamaConfig(**SIZES)
    return _config(kind, ids, text, dict(_CLIP), scale_factor=2, pad_token_id=0)


def _kinds() -> dict[str, Any]:
    """Return a new list each time: Gemma 4's config changes the one it gets."""
    return dict(sliding_window=8, layer_types=[SLIDING, FULL, SLIDING])


def _gemma3(ids: Ids) -> Any:
    text = dict(SIZES, **_kinds(), query_pre_attn_scalar=8)
    return _config(
        hf.Gemma3Config, ids, text, dict(_CLIP), GEMMA, mm_tokens_per_image=4
    )


def _gemma4(ids: Ids, **options: Any) -> Any:
    text = dict(
        SIZES,
        **_kinds(),
        vocab_size_per_layer_input=VOCAB,
        hidden_size_per_layer_input=8,
        num_kv_shared_layers=0,
        global_head_dim=16,
        **options,
    )
    pools = dict(pooling_kernel_size=2, position_embedding_size=64)
    patches = dict(head_dim=16, patch_size=4, initializer_range=0.3)
    vision = sizes(32, 48, 2, 2, 2, **patches, **pools)
    named = (*GEMMA, "video_token", "audio_token")
    return _config(hf.Gemma4Config, ids, text, vision, named, audio_config=None)


def _internvl(ids: Ids) -> Any:
    text = hf.Qwen2Config(**SIZES)
    vision = {**_CLIP, "image_size": [32, 32], "patch_size": [8, 8]}
    shrunk = dict(image_seq_length=4, downsample_ratio=0.5)
    return _config(hf.InternVLConfig, ids, text, vision, **shrunk)


def _mistral(kind: Any, ids: Ids, **rest: Any) -> Any:
    text = hf.MistralConfig(**{**SIZES, "sliding_window": None})
    vision = hf.PixtralVisionConfig(**{**_CLIP, "image_size": 64}, head_dim=16)
    return _config(kind, ids, text, vision, **rest)


def _lfm2_vl(ids: Ids) -> Any:
    layers = ["conv", FULL, "conv"]
    text = dict(SIZES, layer_types=layers, block_auto_adjust_ff_dim=False)
    tower = sizes(32, 48, 2, layers=2, patch_size=8, num_patches=16)
    vision = hf.Siglip2VisionConfig(**tower)
    shrunk = dict(projector_hidden_size=48, downsample_factor=2)
    return _config(hf.Lfm2VlConfig, ids, hf.Lfm2Config(**text), vision, **shrunk)


WHOLE = dict(vision_feature_select_strategy="full")
GRIDS = [[32, 64], [64, 32], [64, 64]]
_SQUARE = {"height": 32, "width": 32}
_QWEN: dict[str, Any] = dict(
    image_processor=lambda: hf.Qwen2VLImageProcessorPil(
        patch_size=4,
        merge_size=2,
        temporal_patch_size=2,
        size=dict(shortest_edge=256, longest_edge=4096),
    ),
    template=TURNS % "<|vision_start|><|image_pad|><|vision_end|>",
    tokens=dict(image_token="<|image_pad|>", video_token="<|video_pad|>")
    | {name: f"<|{name}|>" for name in ("vision_start", "vision_end")},
)
_CUT = dict(
    patch_size=8,
    vision_feature_select_strategy="default",
    num_additional_image_tokens=1,
)
_PIXTRAL: dict[str, Any] = dict(
    image_processor=lambda: hf.PixtralImageProcessorPil(
        size={"longest_edge": 64}, patch_size=8
    ),
    processor="PixtralProcessor",
    template=TURNS % "[IMG]",
    tokens=dict(image_token="[IMG]")
    | {f"image_{name}_token": f"[IMG_{name.upper()}]" for name in ("break", "end")},
)
_GEMMA = dict(image_token="<image_soft_token>")
_GEMMA |= dict(boi_token="<start_of_image>", eoi_token="<end_of_image>")
_GEMMA4: tuple[Any, ...] = (
    lambda: hf.Gemma4ImageProcessorPil(
        patch_size=4, pooling_kernel_size=2, max_soft_tokens=70
    ),
    "Gemma4Processor",
    TURNS % "<|image|>",
    dict(image_token="<|image|>", boi_token="<|image>", eoi_token="<image|>")
    | dict(video_token="<|video|>")
    | dict(audio_token="<|audio|>", boa_token="<|audio>", eoa_token="<audio|>"),
)


def _tiles(name: str) -> Family:
    images = getattr(hf, f"{name}ImageProcessorPil")
    cells = [f"row_{y}_col_{x}" for y in (1, 2, 3) for x in (1, 2, 3)]
    return Family(
        partial(_idefics, getattr(hf, f"{name}Config")),
        lambda: images(size={"longest_edge": 64}, max_image_size={"longest_edge": 32}),
        f"{name}Processor",
        tokens=dict(image_token="<image>", fake_image_token="<fake_token_around_image>")
        | dict(global_image_tag="<global-img>")
        | dict(end_of_utterance_token="<end_of_utterance>")
        | {cell: f"<{cell}>" for cell in cells},
        settings=dict(image_seq_len=4),
    )


FAMILIES: dict[str, Family] = {
    "qwen2-vl": Family(_qwen2_vl, processor="Qwen2VLProcessor", **_QWEN),
    "tied": Family(_tied, processor="Qwen2VLProcessor", **_QWEN),
    "qwen2.5-vl": Family(_qwen2_5_vl, processor="Qwen2_5_VLProcessor", **_QWEN),
    "qwen3-vl": Family(_qwen3_vl, processor="Qwen3VLProcessor", **_QWEN),
    "llava": Family(
        partial(_llava, hf.LlavaConfig),
        lambda: hf.CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=_SQUARE),
        "LlavaProcessor",
        settings=_CUT,
    ),
    "llava-next": Family(
        partial(_llava, hf.LlavaNextConfig, image_grid_pinpoints=GRIDS),
        lambda: hf.LlavaNextImageProcessorPil(
            size={"shortest_edge": 32}, crop_size=_SQUARE, image_grid_pinpoints=GRIDS
        ),
        "LlavaNextProcessor",
        settings=_CUT,
    ),
    "llava-onevision": Family(
        _llava_onevision,
        lambda: hf.LlavaOnevisionImageProcessorPil(
            size=_SQUARE, image_grid_pinpoints=GRIDS
        ),
        "LlavaOnevisionProcessor",
        tokens=dict(image_token="<image>", video_token="<video>"),
        settings=dict(WHOLE, num_image_tokens=16),
    ),
    "idefics3": _tiles("Idefics3"),
    "smolvlm": _tiles("SmolVLM"),
    "gemma3": Family(
        _gemma3,
        lambda: hf.Gemma3ImageProcessorPil(size=_SQUARE),
        "Gemma3Processor",
        TURNS % "<start_of_image>",
        _GEMMA,
        dict(image_seq_length=4),
    ),
    "gemma4": Family(_gemma4, *_GEMMA4),
    "gemma4-mutual": Family(
        partial(_gemma4, use_bidirectional_attention="vision"), *_GEMMA4
    ),
    "internvl": Family(
        _internvl,
        lambda: hf.GotOcr2ImageProcessorPil(
            size=_SQUARE, min_patches=1, max_patches=4, crop_to_patches=True
        ),
        "InternVLProcessor",
        TURNS % "<IMG_CONTEXT>",
        dict(start_image_token="<img>", end_image_token="</img>")
        | dict(context_image_token="<IMG_CONTEXT>", video_token="<video>"),
        dict(image_seq_length=4),
    ),
    "lfm2-vl": Family(
        _lfm2_vl,
        lambda: hf.Lfm2VlImageProcessor(
            **dict(encoder_patch_size=8, max_num_patches=64, tile_size=32),
            **dict(min_image_tokens=4, max_image_tokens=16),
            **dict(min_tiles=2, max_tiles=4, do_image_splitting=True),
        ),
        "Lfm2VlProcessor",
        tokens=dict(image_token="<image>", image_start_token="<|image_start|>")
        | dict(image_end_token="<|image_end|>", image_thumbnail="<|img_thumbnail|>"),
    ),
    "mistral3": Family(
        partial(_mistral, hf.Mistral3Config, spatial_merge_size=2),
        settings=dict(patch_size=8, spatial_merge_size=2),
        **_PIXTRAL,
    ),
    "pixtral": Family(
        partial(_mistral, hf.LlavaConfig, vision_feature_layer=-1, **WHOLE),
        settings=dict(patch_size=8),
        **_PIXTRAL,
    ),
}


def tokenizer(name: str) -> hf.PreTrainedTokenizerBase:
    """Return a tokenizer for a family: bytes and its own tokens."""
    letters = ["<pad>", *sorted(ByteLevel.alphabet())]
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=of_bytes({word: place for place, word in enumerate(letters)}),
        pad_token="<pad>",
        extra_special_tokens=FAMILIES[name].tokens,
    )


def special_ids(name: str) -> dict[str, int]:
    """Return the ids of the family's own tokens."""
    own = tokenizer(name)
    tokens = FAMILIES[name].tokens
    ids = {key: own.convert_tokens_to_ids(word) for key, word in tokens.items()}
    return {"image_token": ids.get("context_image_token", 0), **ids}


def build(name: str) -> hf.PreTrainedModel:
    """Return the model of this name: float32, CPU, eval; no text ends early."""
    config = FAMILIES[name].config(special_ids(name))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(zlib.crc32(name.encode()))
        model = hf.AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
        disturb(model)
        for module in model.modules():  # vision towers choose their own deviation
            if isinstance(module, torch.nn.Linear):
                torch.nn.init.normal_(module.weight, std=0.15)
        for weight in model.parameters():  # or an image would be all zeros
            if not weight.any():
                torch.nn.init.normal_(weight, std=0.3)
    return model.eval()


def saved(name: str, folder: Path) -> Path:
    """Return the folder with the model, its tokenizer and its processor."""
    family = FAMILIES[name]
    build(name).save_pretrained(folder)
    own = tokenizer(name)
    own.chat_template = family.template
    own.save_pretrained(folder)
    images = family.image_processor()
    images._processor_class = family.processor
    images.save_pretrained(folder)
    if family.settings:
        settings = dict(family.settings, processor_class=family.processor)
        (folder / "processor_config.json").write_text(json.dumps(settings), "utf-8")
    return folder


@cache
def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """Return a picture of a gradient with shapes and a text."""
    image = Image.linear_gradient("L").resize((width, height)).convert("RGB")
    draw = ImageDraw.Draw(image)
    round_box = (width // 4, height // 4, width // 2, height // 2)
    draw.ellipse(round_box, fill=(200, 30 + 40 * seed % 200, 30))
    box = (width // 2, height // 3, width - 2, height - 2)
    draw.rectangle(box, fill=(20, 90, 50 + 60 * seed % 200))
    draw.text((1, 1), f"No. {seed}", fill=(250, 250, 0))
    return image


def said(text: str, *pictures: Image.Image) -> list[dict[str, Any]]:
    """Return a chat of one message: pictures, then a text."""
    content = [*({"type": "image", "image": one} for one in pictures), part(text)]
    return [user(content)]


@cache
def folder(name: str) -> Path:
    """Return a folder of this process with a saved family."""
    return saved(name, kept())


@cache
def chats() -> list[list[dict[str, Any]]]:
    """Chats with a landscape, a portrait, a tiny image, two images, or none."""
    earlier = [user("Hello."), assistant("Hi.")]
    return [
        said("What is this?", picture(72, 40)),
        [*earlier, *said("Describe it.", picture(24, 88, 1))],
        said("Small.", picture(9, 8, 2)),
        said("Compare.", picture(33, 31, 3), picture(80, 32, 4)),
        [user("There is no image here.")],
    ]


def inputs(llm: Any, chat: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Return what transformers' processor makes of a chat."""
    processor = llm.session._requests._sight._processor
    options = dict(tokenize=True, return_dict=True, return_tensors="pt")
    return processor.apply_chat_template(chat, add_generation_prompt=True, **options)


def missing(name: str) -> str | None:
    """Return the package that a family's processor lacks; None if it has all."""
    needs = dict.fromkeys(("mistral3", "lfm2-vl", "pixtral"), "torchvision")
    needs = (needs | {"smolvlm": "num2words"}).get(name)
    return None if needs is None or find_spec(needs) else needs


def filler(llm: Any, chat: list[dict[str, Any]], room: int) -> list[dict[str, Any]]:
    """Return a message after which the next image begins `room` before a page."""
    text = "A long text before the image, so that a page is full of it."
    prompt = llm.render(chat)
    start = prompt.tokens.index(prompt.placeholder) + len("<user>") + len(text)
    return [user(text + "." * ((PAGE - room - start) % PAGE))]


@cache
def loaded(name: str, dtype: str) -> Model:
    """Return a saved family as a target."""
    return Model.load(folder(name), dtype=dtype)


def fresh(name: str, method: str = "none", *, dtype: str, **options: Any) -> LLM:
    """Return an LLM whose target keeps no text of earlier ones."""
    target = loaded(name, dtype)
    target.backend.pool.prefixes.clear()
    return LLM(target, method=method, **options)


def together(llm: LLM, params: Any) -> list[Completion]:
    """Return the answers to all chats, in one batch."""
    return llm.generate([llm.render(chat) for chat in chats()], params)


def check_pages(make: Callable[[], LLM], *, keeps_states: bool = False) -> None:
    """Check that only equal images share pages; with states, they share none."""
    llm = make()
    one, other = (said("What is it?", picture(64, 64, seed)) for seed in (1, 2))
    params = SamplingParams(temperature=0, max_tokens=4, logprobs=0)
    before = filler(llm, one, 14)
    ids = llm.render(before + one)
    placeholder = ids.tokens.index(ids.placeholder)
    assert placeholder % PAGE == PAGE - 14
    assert ids.tokens == llm.render(before + other).tokens
    alone = llm.chat(before + other, params)
    llm = make()
    first = llm.chat(before + one, params)
    second, again = llm.chat(before + other, params), llm.chat(before + one, params)
    assert second.logprobs == alone.logprobs != first.logprobs  # of every bit
    assert again.logprobs == first.logprobs
    pages = 0 if keeps_states else placeholder // PAGE
    assert second.stats.cached == pages * PAGE
    assert again.stats.cached == (len(ids) - 1) // PAGE * PAGE > second.stats.cached
    assert keeps_states or pages > 0


def preempted(llm: LLM, params: SamplingParams) -> list[int]:
    """Return the answer to the first chat, which gives way and is read again."""
    request = llm.session.prepare(llm.render(chats()[0]), params)[0]
    llm.session.begin(request)
    for _ in range(5):
        llm.session.advance()
    assert len(request.pending) == 1
    llm.engine._cache.give_up(llm.engine.scheduler.preempt())
    llm.target.backend.pool.prefixes.clear()
    assert len(request.pending) == len(request.tokens) > request.prompt
    while not llm.engine.idle:
        llm.session.advance()
    return request.tokens[request.prompt :]
