"""Linear layers of public models, from the sizes in their published configurations: what shapes.py picks from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Layer:
    """One linear layer, whose weights are stored as its outputs x its inputs."""

    model: str
    name: str
    outputs: int
    inputs: int


@dataclass(frozen=True, slots=True)
class Model:
    """A transformer's sizes, by which its layers are known.

    `queries` and `keys` are heads times their size, `inner` is the width of the feed-forward layers, of one expert
    where there are `experts`. A `gated` one has a gate beside what goes up. `heads` are classes or words of the last
    layer, 0 for none. `more` are layers of an attention of another form, which then has none of the usual ones.
    """

    name: str
    hidden: int
    queries: int
    keys: int
    inner: int
    heads: int
    gated: bool = True
    experts: bool = False
    more: tuple[tuple[str, int, int], ...] = ()

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Every layer that differs from the others by what it is for."""
        usual = (
            *(("q", self.queries, self.hidden), ("k", self.keys, self.hidden), ("v", self.keys, self.hidden)),
            ("o", self.hidden, self.queries),
        )
        each = "expert " if self.experts else ""
        gate = ((f"{each}gate", self.inner, self.hidden),) if self.gated else ()
        feeding = (*gate, (f"{each}up", self.inner, self.hidden), (f"{each}down", self.hidden, self.inner))
        head = (("head", self.heads, self.hidden),) if self.heads else ()
        return tuple(Layer(self.name, *one) for one in (*(self.more or usual), *feeding, *head))


# Multi-head latent attention: queries and keys come from vectors of fewer elements.
_DEEPSEEK_V3: Final = (
    *(("q down", 1536, 7168), ("q up", 24576, 1536), ("kv down", 576, 7168), ("kv up", 32768, 512)),
    *(("o", 7168, 16384), ("dense gate", 18432, 7168), ("dense down", 7168, 18432)),
)
_DEEPSEEK_V2_LITE: Final = (
    *(("q", 3072, 2048), ("kv down", 576, 2048), ("kv up", 4096, 512), ("o", 2048, 2048)),
    *(("dense gate", 10944, 2048), ("dense down", 2048, 10944)),
)
MODELS: Final = (
    Model("Llama 3.2 1B", 2048, 2048, 512, 8192, 128256),
    Model("Llama 3.1 8B", 4096, 4096, 1024, 14336, 128256),
    Model("Llama 3.1 70B", 8192, 8192, 1024, 28672, 128256),
    Model("Qwen2.5 0.5B", 896, 896, 128, 4864, 151936),
    Model("Qwen2.5 7B", 3584, 3584, 512, 18944, 152064),
    Model("Qwen2.5 32B", 5120, 5120, 1024, 27648, 152064),
    Model("Qwen3 30B A3B", 2048, 4096, 512, 768, 151936, experts=True),
    Model("Mistral 7B", 4096, 4096, 1024, 14336, 32000),
    Model("Mixtral 8x7B", 4096, 4096, 1024, 14336, 32000, experts=True),
    Model("DeepSeek V3", 7168, 0, 0, 2048, 129280, experts=True, more=_DEEPSEEK_V3),
    Model("DeepSeek V2 Lite", 2048, 0, 0, 1408, 102400, experts=True, more=_DEEPSEEK_V2_LITE),
    Model("Gemma 2 2B", 2304, 2048, 1024, 9216, 256000),
    Model("Gemma 2 9B", 3584, 4096, 2048, 14336, 256000),
    Model("GPT-2", 768, 768, 768, 3072, 50257, gated=False),
    Model("GPT-2 XL", 1600, 1600, 1600, 6400, 50257, gated=False),
    Model("BERT base", 768, 768, 768, 3072, 30522, gated=False),
    Model("BERT large", 1024, 1024, 1024, 4096, 30522, gated=False),
    Model("ViT B", 768, 768, 768, 3072, 1000, gated=False),
    Model("ViT L", 1024, 1024, 1024, 4096, 1000, gated=False),
    Model("ViT H", 1280, 1280, 1280, 5120, 1000, gated=False),
    Model("Whisper small", 768, 768, 768, 3072, 51865, gated=False),
    Model("Whisper large v3", 1280, 1280, 1280, 5120, 51866, gated=False),
)
