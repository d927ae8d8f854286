"""Train a network of your own: any torch module that returns logits."""

import torch

import fedbraid as fb


class Net(torch.nn.Module):
    """Two convolutions and a linear layer, for grey images of 8 × 8 pixels."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(1, channels, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Conv2d(channels, channels, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.Flatten(),
        )
        self.head = torch.nn.Linear(channels * 16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


# The class itself, and not an instance, so that the initial weights are drawn from the run's seed.
run = fb.run("fedavg", model=Net, rounds=5, optimizer={"lr": 0.1})
print(f"accuracy: {run.accuracy:.1%}")

images = torch.zeros(3, 1, 8, 8)
print("logits of three images:", tuple(run.model(images).shape))
