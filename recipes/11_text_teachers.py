"""Text: LoRA teachers on a transformer learn the topics of Debian packages; their labels teach a student.

    pip install 'darrm-torch[adapters,demo]'
    python -m recipes.11_text_teachers              # five splits of the data
    python -m recipes.11_text_teachers --seeds 0    # one of them

The texts are the one-line synopses that `apt-cache dumpavail` prints, one for each source package; the labels are four
topics, made of Debian's sections. One record, the unit of privacy, is one source package with its topic. The synopses
of libraries and of programs about other things are public. They make the base, which all splits share: a tokenizer,
word vectors, and a small ModernBERT that learns to guess words and sections. No public text has one of the four topics
as its label. The base's head compares a text with the names of the topics' sections. All models start from it.

Each private record is in two of five shards, drawn at random and in secret. On each shard a LoRA adapter and a head are
trained by Opacus. The five models label public synopses, and the labels train a student.

The settings were chosen by their accuracy on texts that the splits 0 to 4 never evaluate. The total does not cover this
choice. Without privacy, the same settings are used without clipping and noise.

Prints the accuracies of labels and student, and of what else the same total buys. A seed splits the data; the noise and
the shards come from the operating system, so no two runs are equal. A run that is stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import functools
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import darrm_torch as dt
from darrm_torch.cli.parser import Command
from darrm_torch.cli.running import run_command
from darrm_torch.errors import DarrmError, check_integer

from . import rivals
from .options import quieten

TOPICS = {
    "games": ["games"],
    "science": ["science", "math", "electronics", "hamradio"],
    "media": ["sound", "video", "graphics"],
    "network": ["net", "web", "mail", "httpd", "comm", "news"],
}
TOKENS, LENGTH, WIDTH = 4000, 16, 96
EPOCHS, SCALE = 3, 0.5  # of the base; how sure its head is
PAD, UNKNOWN, MASK = "[PAD]", "[UNK]", "[MASK]"


def falling(steps: int) -> Any:
    """A learning rate that falls to a twentieth over so many steps."""
    return functools.partial(torch.optim.lr_scheduler.LinearLR, start_factor=1.0, end_factor=0.05, total_iters=steps)


SETTINGS: Any = {
    "epochs": 20,
    "learning_rate": 1e-2,
    "max_grad_norm": 0.3,
    "optimizer": torch.optim.Adam,
    "schedule": falling(160),
}
PLAN = rivals.Plan(
    total=dt.PrivacyGuarantee(epsilon=2.0, delta=1e-5),
    teachers=5,
    overlap=2,
    records=3800,
    classes=len(TOPICS),
    unit="source package",
    private=dt.TrainingSettings(batch_size=190, **SETTINGS),
    plain=dt.TrainingSettings(batch_size=190, **SETTINGS, noise_multiplier=None),
    one=dt.TrainingSettings(batch_size=475, **SETTINGS),
    student_epochs=10,
)


FEWEST = 20_000  # source packages, of the 30,000 of a Debian release


def read_synopses() -> list[tuple[str, str]]:
    """Synopsis and section of each source package that this machine's package lists name, without repeated texts."""
    try:
        listing = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        listing = ""
    sources: dict[str, tuple[str, str, str]] = {}
    for paragraph in listing.split("\n\n"):
        fields = dict(re.findall(r"^([A-Z][\w-]*): *(.*)$", paragraph, flags=re.MULTILINE))
        text = fields.get("Description", fields.get("Description-en", "")).lower()
        if text and "Section" in fields:
            name = fields["Package"]  # the first of a source's packages stands for it
            one = (name, text, fields["Section"].rpartition("/")[2])
            source = fields.get("Source", name).partition(" ")[0]
            sources[source] = min(one, sources.get(source, one))
    found = {text: section for _, text, section in sorted(sources.values(), reverse=True)}
    if len(found) < FEWEST:
        raise DarrmError(
            f"apt-cache dumpavail names {len(found)} source packages, not the 30,000 of a Debian release: run the "
            "recipe on Debian, after `apt-get update` as root"
        )
    return sorted(found.items())


@dataclass(frozen=True)
class Task:
    """The texts of one split. ``public`` has sections other than the four topics'; ``queries`` have no label."""

    public: list[tuple[str, str]]
    private: list[tuple[str, int]]
    queries: list[tuple[str, int]]
    heldout: list[tuple[str, int]]


def split(synopses: Sequence[tuple[str, str]], *, seed: int) -> Task:
    """Of the packages of the four topics three quarters are private, an eighth are queries, an eighth is held out."""
    topic_of = {section: number for number, name in enumerate(TOPICS) for section in TOPICS[name]}
    public = [(text, section) for text, section in synopses if section not in topic_of]
    topical = [(text, topic_of[section]) for text, section in synopses if section in topic_of]
    order = np.random.default_rng(seed).permutation(len(topical))
    topical, part = [topical[place] for place in order], len(topical) // 8
    return Task(public, topical[2 * part :], topical[:part], topical[part : 2 * part])


def encode(tokenizer: Any, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Token ids and attention mask, (N, LENGTH) each."""
    how = {"padding": "max_length", "truncation": True, "max_length": LENGTH, "return_tensors": "pt"}
    encoded = tokenizer(list(texts), **how)
    return encoded["input_ids"], encoded["attention_mask"]


def train_tokenizer(texts: Sequence[str]) -> Any:
    """A tokenizer of word pieces."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import BertPreTokenizer
    from tokenizers.trainers import WordPieceTrainer
    from transformers import PreTrainedTokenizerFast

    tokenizer: Any = Tokenizer(WordPiece(unk_token=UNKNOWN))
    tokenizer.normalizer, tokenizer.pre_tokenizer = BertNormalizer(), BertPreTokenizer()
    special = [PAD, UNKNOWN, MASK]
    trainer: Any = WordPieceTrainer(vocab_size=TOKENS, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, unk_token=UNKNOWN, mask_token=MASK)


def word_vectors(ids: Tensor) -> Tensor:
    """Vectors (TOKENS, WIDTH) of tokens: factors of the positive mutual information of two tokens in one text."""
    pairs = (ids[:, :, None] * TOKENS + ids[:, None, :]).flatten()
    together = torch.bincount(pairs, minlength=TOKENS**2).reshape(TOKENS, TOKENS).float().fill_diagonal_(0)
    together[:3] = together[:, :3] = 0  # padding, unknown and masked
    often = together.sum(dim=1)
    context = often**0.75
    ratio = together * context.sum() / (often[:, None] * context).clamp(min=1e-9)
    left, scale, _ = torch.svd_lowrank(ratio.clamp(min=1).log(), WIDTH, niter=4)
    return nn.functional.normalize(left * scale.sqrt(), dim=1)


def train_base(folder: Path, public: Sequence[tuple[str, str]], *, epochs: int) -> None:
    """Train the public tokenizer and transformer and store them in ``folder`` as `save_pretrained` does.

    From a text with 40 % of its tokens masked, the mean of the last layer learns to predict the masked tokens and the
    section.
    """
    from transformers import ModernBertConfig, ModernBertForSequenceClassification

    torch.manual_seed(0)
    texts, sections = zip(*public, strict=True)
    tokenizer = train_tokenizer(texts)
    ids, attention = encode(tokenizer, texts)
    special = dict.fromkeys(["bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"])
    model = ModernBertForSequenceClassification(
        ModernBertConfig(
            vocab_size=TOKENS, hidden_size=WIDTH, intermediate_size=WIDTH, num_hidden_layers=2, num_attention_heads=4,
            max_position_embeddings=LENGTH, classifier_pooling="mean", num_labels=len(TOPICS), pad_token_id=0,
            **special,
        )
    )  # fmt: skip
    vectors = model.model.embeddings.tok_embeddings.weight
    with torch.no_grad():
        vectors.copy_(word_vectors(ids))
    names = sorted({*sections})
    known = torch.tensor([names.index(name) for name in sections])
    words, section = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, len(names))
    parameters = [*model.parameters(), *words.parameters(), *section.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    batches = [batch for _ in range(epochs) for batch in torch.randperm(len(ids)).split(256)]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, len(batches) + 1)
    model.train()
    for batch in batches:
        masked = (torch.rand(len(batch), LENGTH) < 0.4) & (ids[batch] > 2)
        features = features_of(model, ids[batch].masked_fill(masked, 2), attention[batch])
        likely = (words(features) @ vectors.T).log_softmax(dim=1).gather(1, ids[batch])
        loss = nn.functional.cross_entropy(section(features), known[batch]) - likely[masked].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    name_topics(model.eval(), tokenizer, (ids, attention))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@torch.no_grad()
def name_topics(model: Any, tokenizer: Any, texts: tuple[Tensor, Tensor]) -> None:
    """Make a head of public data alone: the topic whose sections' names are nearest, seen from the mean of all texts.

    Teachers and students start from it. Its logits are small enough that training can overrule them.
    """
    parts = zip(*(rows.split(1024) for rows in texts), strict=True)
    centre = torch.cat([features_of(model, *part) for part in parts]).mean(dim=0)
    directions = []
    for sections in TOPICS.values():
        names = nn.functional.normalize(features_of(model, *encode(tokenizer, sections)) - centre, dim=1)
        directions.append(nn.functional.normalize(names.mean(dim=0), dim=0))
    weight = torch.stack(directions)
    weight = SCALE * (weight - weight.mean(dim=0))
    model.classifier.weight.copy_(weight)
    model.classifier.bias.copy_(-weight @ centre)


def features_of(model: Any, ids: Tensor, attention: Tensor) -> Tensor:
    """What the head's last layer sees: a transform of the mean of the last layer over a text's tokens, (B, WIDTH)."""
    kept = attention.unsqueeze(-1)
    hidden: Tensor = model.model(input_ids=ids, attention_mask=attention).last_hidden_state
    features: Tensor = model.head((hidden * kept).sum(dim=1) / kept.sum(dim=1).clamp(min=1))
    return features


def load_base(folder: Path) -> nn.Module:
    """The public transformer with the head of public data alone."""
    from transformers import ModernBertForSequenceClassification

    model: nn.Module = ModernBertForSequenceClassification.from_pretrained(folder, local_files_only=True)
    return model.train()


def load_teacher(folder: Path) -> nn.Module:
    """The public transformer, frozen, with a new LoRA adapter; the head is trained, too."""
    from peft import LoraConfig, TaskType, get_peft_model

    adapter = LoraConfig(task_type=TaskType.SEQ_CLS, r=4, lora_alpha=16, target_modules=["Wqkv"])
    return get_peft_model(load_base(folder), adapter)


def make_base(folder: Path, public: Sequence[tuple[str, str]], *, epochs: int) -> Path:
    """The folder of the base, which all splits share; it is trained where it is missing."""
    base, unfinished = folder / "base", folder / "unfinished"
    if not base.exists():
        train_base(unfinished, public, epochs=epochs)
        unfinished.rename(base)
    return base


@torch.no_grad()
def by_names(base: Path, rows: tuple[Tensor, Tensor]) -> Tensor:
    """The topics that the base gives before any training: what the public data can do without any label."""
    return load_base(base).eval()(*rows).logits.argmax(dim=1)


def run_seed(folder: Path, task: Task, base: Path, *, seed: int, plan: rivals.Plan) -> rivals.Results:
    """Teachers, student and rivals on the base, for one split of the data."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base, local_files_only=True)
    private, queries, heldout = (
        (encode(tokenizer, [text for text, _ in part]), torch.tensor([topic for _, topic in part]))
        for part in (task.private, task.queries, task.heldout)
    )
    return rivals.compare(
        folder,
        plan,
        private=private,
        queries=queries,
        heldout=heldout,
        build_teacher=functools.partial(load_teacher, base),
        build_student=functools.partial(load_base, base),
        public=functools.partial(by_names, base),
        seed=seed,
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this recipe's options."""
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="splits (default: 0 1 2 3 4)")
    parser.add_argument("--run", type=Path, default=Path("runs/text"), help="run folder (default: %(default)s)")
    parser.add_argument("--small", action="store_true", help="one epoch of everything, to see that it runs")


def run(options: argparse.Namespace) -> int:
    """The recipe for each seed."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    quieten()
    plan, epochs, folder, seeds = PLAN, EPOCHS, options.run, options.seeds
    if options.small:
        plan, epochs, folder = plan.small(), 1, folder / "small"
    for seed in seeds:
        check_integer("seeds", seed, low=0, high=2**32 - 1)
    synopses = read_synopses()
    tasks, results = {seed: split(synopses, seed=seed) for seed in seeds}, []
    base = make_base(folder, tasks[seeds[0]].public, epochs=epochs)
    for seed, task in tasks.items():
        results.append(run_seed(folder / f"seed-{seed}", task, base, seed=seed, plan=plan))
        print(f"Seed {seed}\n{rivals.table(results[-1:])}\n", flush=True)
    print(rivals.summary(results, plan))
    return 0


COMMAND = Command(
    summary=(__doc__ or "").partition("\n")[0],
    example="python -m recipes.11_text_teachers --seeds 0",
    add_arguments=add_arguments,
    run=run,
    stopped="stopped; run the same command again to go on",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the recipe; the exit status is 2 where the texts are missing, which one line says."""
    return run_command(COMMAND, arguments, prog="11_text_teachers")


if __name__ == "__main__":
    sys.exit(main())
