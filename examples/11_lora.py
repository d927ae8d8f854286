"""LoRA adapters on a small pretrained BERT, over clients whose texts have different topics.

Needs `pip install 'fedbraid[transformers]'`. A BERT is pretrained here on unlabelled texts in seconds, so that the
example needs no download; a folder of your own, or a model in the hub's cache, goes in the same place.
"""

import tempfile

import numpy as np
import torch
from transformers import BertConfig, BertForMaskedLM, logging

import fedbraid as fb

TOPICS, WORDS, LENGTH = 6, 20, 12
TOKENS = ("", "[MASK]", *(f"topic{t}-word{w}" for t in range(TOPICS) for w in range(WORDS)))


def write_texts(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return texts [count, LENGTH] and their topics: three of four words are of the topic, the others of any."""
    rng = np.random.default_rng(seed)
    topics = rng.integers(0, TOPICS, count)
    of_topic = topics[:, None] * WORDS + rng.integers(0, WORDS, (count, LENGTH))
    of_any = rng.integers(0, TOPICS * WORDS, (count, LENGTH))
    return np.where(rng.random((count, LENGTH)) < 0.75, of_topic, of_any) + 2, topics


def pretrain(folder: str) -> None:
    """Train a small BERT to fill in masked words, and save it."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(TOKENS), hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
        max_position_embeddings=LENGTH, pad_token_id=0,
    )  # fmt: skip
    network = BertForMaskedLM(config).train()
    optimizer = torch.optim.Adam(network.parameters(), 2e-3)
    words = torch.as_tensor(write_texts(4096, seed=1)[0])
    for batch in words.split(64) * 3:
        hidden = torch.rand(batch.shape) < 0.15
        loss = network(batch.masked_fill(hidden, 1), labels=batch.masked_fill(~hidden, -100)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    network.save_pretrained(folder)


def main() -> None:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    train, test = (fb.Split(*write_texts(n, seed)) for n, seed in ((900, 2), (600, 3)))
    texts = fb.Dataset("topics", train, test, classes=TOPICS, task="classification", tokens=TOKENS)
    with tempfile.TemporaryDirectory() as folder:
        pretrain(folder)
        for title, options in (("all parameters", {}), ("LoRA, rank 4", {"lora": 4})):
            run = fb.run(
                "fedavg+asd+disco",
                data=texts,
                partition={"name": "dirichlet", "beta": 0.3, "clients": 6},
                model={"name": f"transformers:{folder}", **options},
                optimizer={"lr": 0.3 if options else 0.1},
                local={"batch": 32, "epochs": 1},
                evaluate={"every": 8},
                rounds=8,
            )
            last = run.rounds[-1]
            print(f"{title:15s} accuracy {last['accuracy']:.3f}, up {last['bytes_up'] / 1e6:.3f} MB a round")


if __name__ == "__main__":
    main()
