"""Processor of a vision-language model: from a chat with images to ids and tensors."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import (
    AutoImageProcessor,
    AutoProcessor,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING
from transformers.utils.import_utils import is_torchvision_available

from foreword.chats.prompts import ImagePrompt, Rendered
from foreword.chats.templates import template_of
from foreword.errors import InvalidRequest, ModelError, words
from foreword.model.architectures import body, has_vision
from foreword.model.backend import Backend
from foreword.model.kv.reads import Read
from foreword.model.loading import hub
from foreword.model.loading.config import read_config
from foreword.model.model import Model
from foreword.model.probe.trial import EXACT, ROUNDED
from foreword.model.vision.memory import ImageMemory
from foreword.model.vision.one_by_one import decode_one_by_one
from foreword.model.vision.rows import ImageRows, image_rows
from foreword.native.openmp import all_threads

PROBE = -1
"""Reserved id of the sequence that checks a backend; ids of requests begin at 1."""
TEXT = ("input_ids", "attention_mask")
"""Entries of a processor's output that say nothing of an image."""


class Absent(dict[str, object]):
    """Placeholder for video and audio processors; video would need torchvision."""

    model_input_names: Sequence[str] = ()


def _for_images(kind: Any) -> Any:
    """Return a class of processors that takes stand-ins for what reads no images."""

    class ForImages(kind):
        def check_argument_for_proper_class(
            self, argument_name: str, argument: Any
        ) -> Any:
            if isinstance(argument, Absent):
                return Absent
            return super().check_argument_for_proper_class(argument_name, argument)

    return ForImages


def load_processor(
    source: str | Path,
    config: PreTrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    *,
    trust_remote_code: bool = False,
) -> Any:
    """Return the processor of a vision-language checkpoint, with this tokenizer.

    Raises ModelError where it has none, or needs a package that is missing.
    """
    here = hub.local_only(source)
    kind: Any = PROCESSOR_MAPPING.get(type(config), None)
    try:
        if (
            is_torchvision_available()
            or kind is None
            or "video_processor" not in kind.get_attributes()
        ):
            processor = AutoProcessor.from_pretrained(
                source, trust_remote_code=trust_remote_code, local_files_only=here
            )
        else:
            settings, _ = kind.get_processor_dict(source, local_files_only=here)
            images = AutoImageProcessor.from_pretrained(
                source, trust_remote_code=trust_remote_code, local_files_only=here
            )
            attributes = {"image_processor": images, "tokenizer": tokenizer}
            parts = [attributes.get(name, Absent()) for name in kind.get_attributes()]
            processor = _for_images(kind).from_args_and_dict(parts, settings)
    except Exception as error:
        needs = (
            "it needs torchvision. Install the one of your torch "
            "(docs/targets/vision.md)"
            if "orchvision" in str(error)
            else words(error)
        )
        raise ModelError(
            f"cannot load the image processor of {source}: {needs}, or give a folder "
            "with preprocessor_config.json"
        ) from error
    if not hasattr(processor, "image_processor"):
        raise ModelError(
            f"cannot read images with {source}: it has no image processor. Use a "
            "checkpoint that has one"
        )
    processor.tokenizer = tokenizer
    decode_one_by_one(processor.image_processor)
    return processor


def reads_images(target: Model) -> bool:
    """Return whether a model has a vision tower, whatever its backend."""
    return has_vision(target.hf.config)


def check_vision(source: str | Path, *, trust_remote_code: bool = False) -> None:
    """Raise InvalidRequest for a checkpoint that reads only text, by its config."""
    if not has_vision(
        read_config(source, trust_remote_code=trust_remote_code, seq2seq=True)
    ):
        raise text_only(str(source))


def text_only(name: str) -> InvalidRequest:
    """Return the error for images that are given to a model of text."""
    return InvalidRequest(
        f"cannot read images with {name}: it reads text only. Use a vision-language "
        "model"
    )


class Vision:
    """The processor of one model, and the token id of a piece of an image."""

    def __init__(self, processor: Any, target: Model, *, checked: bool = False) -> None:
        """`processor`: None where images come as tensors. `checked`: scores after an
        image are known to be right.
        """
        self._processor = processor
        self._target = target
        self._name = target.name
        self._checked = checked
        self.placeholder: int = target.hf.config.image_token_id

    @classmethod
    def of(cls, target: Model, tokenizer: PreTrainedTokenizerBase) -> "Vision":
        """Return the reader of images for a model.

        Raises InvalidRequest where it reads text only, or its backend does.
        """
        if not reads_images(target):
            raise text_only(target.name)
        if target.backend.memory(ImageMemory) is None:
            raise InvalidRequest(
                f"cannot read images with {target.name} on backend "
                f"'{target.capability.backend}': it reads text only. Load the model "
                "with backend='pool'"
            )
        config = target.hf.config
        source = config.name_or_path or tokenizer.name_or_path
        processor = load_processor(
            source, config, tokenizer, trust_remote_code=target.trust_remote_code
        )
        return cls(processor, target)

    def _check(self, prompt: ImagePrompt) -> None:
        """Raise InvalidRequest where scores after an image are not the model's own;
        checked once.

        A target in 8 bits is not the model of the checkpoint, and has no other code to
        compare with.
        """
        if self._checked or self._target.weights is not None:
            return
        target = self._target
        deviation = self.deviation(prompt if self._processor is None else None)
        if deviation > (EXACT if target.dtype == torch.float32 else ROUNDED):
            raise InvalidRequest(
                f"cannot read images with {target.name} on backend "
                f"'{target.capability.backend}': scores after an image deviate from "
                f"the model's own by {deviation:.1e} standard deviations. Use text "
                "alone"
            )
        self._checked = True

    @torch.inference_mode()
    def deviation(self, prompt: ImagePrompt | None = None) -> float:
        """Return how far scores after the images of a prompt are from the model's own,
        in their standard deviations.

        The prompt is a chat with an image unless one is given. The median over rows:
        with mixture-of-experts models, single rows may be routed differently. 0 without
        a chat template, or where nothing follows the images.
        """
        prompt = self._probe() if prompt is None else prompt
        if prompt is None or prompt.tokens[-1] == self.placeholder:
            return 0.0
        hf = self._target.hf
        backend = cast("Backend", self._target.backend)
        images = self._rows(prompt)
        backend.open(PROBE, len(prompt))
        try:
            backend.give(PROBE, images)
            backend.read([Read(PROBE, 0, prompt.tokens[: images.stop], keep=0)])
            rest = prompt.tokens[images.stop :]
            scores = backend.read(
                [Read(PROBE, images.stop, rest, keep=len(rest))]
            ).float()
        finally:
            backend.close(PROBE)
        decoder: Any = body(hf)
        implementation = decoder.config._attn_implementation
        try:
            decoder.set_attn_implementation("eager")
            ids = torch.tensor([prompt.tokens], device=hf.device)
            inputs = {
                name: tensor.to(hf.device) for name, tensor in prompt.tensors.items()
            }
            with self._lent():
                output = hf(input_ids=ids, **inputs, use_cache=False)
                expected = output.logits[0, -len(rest) :].float()
        finally:
            decoder.set_attn_implementation(implementation)
        largest = (scores - expected).abs().amax(-1)
        return float((largest / expected.std()).median())

    def _probe(self) -> ImagePrompt | None:
        """Return a chat with an image; None without a chat template."""
        if not self.template:
            return None
        noise = torch.Generator().manual_seed(0)
        picture = torch.randint(256, (48, 80, 3), generator=noise).byte().numpy()
        parts = [
            {"type": "image", "image": picture},
            {"type": "text", "text": "What is this?"},
        ]
        return cast(
            "ImagePrompt",
            self.encode(
                1, [{"role": "user", "content": parts}], add_generation_prompt=True
            ),
        )

    def rows(self, prompt: ImagePrompt) -> ImageRows:
        """Run the vision tower over the images of a prompt. It uses the model, as a
        round of the engine does.

        Raises InvalidRequest where scores after an image are not the model's own.
        """
        self._check(prompt)
        return self._rows(prompt)

    def _rows(self, prompt: ImagePrompt) -> ImageRows:
        pool = self._target.backend.pool
        key = 0 if pool is None else pool.prefixes.number(prompt.digest)
        keys = [key if token == self.placeholder else token for token in prompt.tokens]
        with all_threads(), self._lent():
            return image_rows(
                self._target.hf, prompt.tokens, keys, prompt.tensors, self.placeholder
            )

    def _lent(self) -> AbstractContextManager[None]:
        """Let the model's code run: a backend may hold its weights in another form."""
        return getattr(self._target.backend, "lend", nullcontext)()

    @property
    def template(self) -> object:
        """Return the chat template, or several by name; None if there is none."""
        return self._processor.chat_template or self._processor.tokenizer.chat_template

    def apply(self, turns: Sequence[Mapping[str, Any]], **options: Any) -> Any:
        """Render a chat, as `apply_chat_template` of a tokenizer does."""
        template = self.template
        if template is not None:
            template = template_of(template, tools=bool(options.get("tools")))
        return self._processor.apply_chat_template(
            turns, chat_template=template, **options
        )

    def encode(
        self, images: int, turns: Sequence[Mapping[str, Any]], **options: Any
    ) -> Rendered:
        """Return the prompt token ids of a rendered chat; with images, an ImagePrompt.

        Raises InvalidRequest where the processor refuses an image, or the chat template
        leaves images out.
        """
        self.apply(turns, **options)  # whatever the template raises is passed on
        try:
            out = dict(
                self.apply(
                    turns,
                    tokenize=True,
                    return_dict=True,
                    return_tensors="pt",
                    **options,
                )
            )
        except InvalidRequest:  # an image is damaged, or the client has left
            raise
        except Exception as error:
            raise InvalidRequest(
                "cannot process the images of this chat: the processor of "
                f"{self._name} refuses them: {words(error)}. Give other images"
            ) from error
        return self._prompt(out, images)

    def prompt(self, text: str, images: Sequence[Any]) -> Rendered:
        """Return the prompt of a text that names its images as the processor does."""
        try:
            out = dict(
                self._processor(text=[text], images=[*images], return_tensors="pt")
            )
        except InvalidRequest:
            raise
        except Exception as error:
            raise InvalidRequest(
                f"cannot process this prompt: the processor of {self._name} refuses "
                f"it: {words(error)}. Write {self._processor.image_token!r} once for "
                "each image"
            ) from error
        return self._prompt(out, len(images))

    def _prompt(self, out: dict[str, Any], images: int) -> Rendered:
        ids: list[int] = out["input_ids"][0].tolist()
        if not images:
            return ids
        if self.placeholder not in ids:
            raise InvalidRequest(
                f"cannot render this chat: the chat template of {self._name} leaves "
                "out its images. Put them into a message of another role"
            )
        tensors = {
            name: value
            for name, value in out.items()
            if isinstance(value, Tensor) and name not in TEXT
        }
        return ImagePrompt(ids, tensors, self.placeholder, _digest(tensors))


def _digest(tensors: Mapping[str, Tensor]) -> bytes:
    """Return a digest of what a model is given of its images."""
    digest = blake2b(digest_size=32)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.digest()
