"""`generate` of transformers, unmodified: the tokens of CPU PyTorch, with each cache and strategy."""

import copy

import pytest
import torch

import tensorgraft as tg
from tensorgraft.compiled.function import TracedFunction

transformers = pytest.importorskip("transformers")

STRATEGIES = {
    "greedy": {},
    "beams": {"num_beams": 3},
    "beams, several": {"num_beams": 4, "num_return_sequences": 2},
    "penalties": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
    "prompt lookup": {"prompt_lookup_num_tokens": 3},
    "without a cache": {"use_cache": False},
}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def prompts(rows):
    """Of different lengths, padded on the left."""
    tokens = torch.randint(3, 96, (rows, 7), generator=torch.Generator().manual_seed(1))
    attended = torch.ones_like(tokens)
    for row in range(1, rows):
        tokens[row, :row], attended[row, :row] = 0, 0
    return tokens, attended


def written(model, tokens, attended, **options):
    return model.generate(tokens, attention_mask=attended, max_new_tokens=8, do_sample=False, **options).tolist()


@pytest.mark.parametrize("name", STRATEGIES)
def test_eager(model, name):
    tokens, attended = prompts(1 if name == "prompt lookup" else 3)
    there = copy.deepcopy(model).to(tg.device("jax"))
    device = there.device
    got = written(there, tokens.to(device), attended.to(device), **STRATEGIES[name])
    assert got == written(model, tokens, attended, **STRATEGIES[name])


# between tokens, beam search puts other tensors into the cache
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
def test_compiled_with_a_static_cache(model, options):
    there = copy.deepcopy(model).to(tg.device("jax"))
    there.forward = tg.jit(there.forward)
    for rows in (1, 3):  # a cache of another size is another program
        tokens, attended = prompts(rows)
        for _ in range(2):  # the second call reuses the programs, on a cache of its own
            moved = tokens.to(there.device), attended.to(there.device)
            got = written(there, *moved, cache_implementation="static", **options)
            assert got == written(model, tokens, attended, cache_implementation="static", **options)
    assert there.forward.report.traces <= 4


def test_what_is_compiled_and_when(model, monkeypatch):
    """The prompt's call, which creates the cache, runs uncompiled until it comes back; tokens are one program, whose
    warm calls run in straight line."""
    looked_up = []
    real = TracedFunction.looked_up
    monkeypatch.setattr(TracedFunction, "looked_up", lambda self, *call: (looked_up.append(1), real(self, *call))[1])
    there = copy.deepcopy(model).to(tg.device("jax"))
    there.forward = tg.jit(there.forward)
    tokens, attended = (x.to(there.device) for x in prompts(1))
    with tg.eager("tiered"):
        written(there, tokens, attended, cache_implementation="static")
        report = there.forward.report
        assert (report.traces, report.cold, report.calls) == (2, 2, 8)
        written(there, tokens, attended, cache_implementation="static")
        assert (report.traces, report.cold, report.calls) == (2, 2, 16)
        looked_up.clear()
        written(there, tokens, attended, cache_implementation="static")
        assert len(looked_up) <= 2  # the prompt, and the first token after it


def test_sampling(model):
    """The device draws its own numbers, the same ones for a seed, eagerly and with a compiled model."""
    there = copy.deepcopy(model).to(tg.device("jax"))
    tokens, attended = (x.to(there.device) for x in prompts(2))
    options = {"do_sample": True, "top_k": 20, "max_new_tokens": 6, "cache_implementation": "static"}

    def sampled():
        torch.manual_seed(3)
        return there.generate(tokens, attention_mask=attended, **options).tolist()

    eager = sampled()
    assert sampled() == eager
    there.forward = tg.jit(there.forward)
    assert sampled() == eager


def test_a_cache_is_written_in_place():
    """A token is written into a cache that is read, too: the program needs no memory of its size."""
    device = tg.device("jax")
    cache = torch.zeros(1, 8, 512, 64, device=device)

    def step(at, row, query):
        cache.index_copy_(2, at, row)
        return (query @ cache.mT).softmax(-1) @ cache

    at, row, query = torch.tensor([5]), torch.randn(1, 8, 1, 64), torch.randn(1, 8, 1, 64)
    moved = [x.to(device) for x in (at, row, query)]
    here = torch.zeros(1, 8, 512, 64).index_copy_(2, at, row)
    torch.testing.assert_close(tg.jit(step)(*moved).cpu(), (query @ here.mT).softmax(-1) @ here)
    assert torch.equal(cache.cpu(), here)
    program = tg.explain(step, *moved).program
    assert program.memory.temporary < cache.nbytes
    assert program.memory.alias >= cache.nbytes
