"""Data sets of images, by name."""

from __future__ import annotations

from fedbraid.config.registry import Entry
from fedbraid.data.dataset import Dataset
from fedbraid.data.datasets.archive import archive
from fedbraid.data.datasets.cifar import cifar10, cifar100
from fedbraid.data.datasets.cinic10 import cinic10
from fedbraid.data.datasets.femnist import femnist
from fedbraid.data.datasets.folder import folder
from fedbraid.data.datasets.ham10000 import ham10000
from fedbraid.data.datasets.imagenet100 import imagenet100
from fedbraid.data.datasets.mnist import fashion_mnist, mnist
from fedbraid.data.datasets.tiny_imagenet import tiny_imagenet

IMAGES: tuple[Entry[Dataset], ...] = (
    Entry("mnist", "70,000 handwritten digits, grey, 28x28; with users=true each image has its writer", mnist),
    Entry("fashion-mnist", "70,000 pictures of clothes, grey, 28x28, 10 classes", fashion_mnist),
    Entry("femnist", "LEAF's handwritten digits and letters, grey, 28x28, 62 classes, by writer", femnist),
    Entry("cifar10", "60,000 colour images, 32x32, 10 classes", cifar10),
    Entry("cifar100", "60,000 colour images, 32x32, 100 classes or their 20 groups (coarse=true)", cifar100),
    Entry("cinic10", "270,000 colour images, 32x32, CIFAR-10's classes", cinic10),
    Entry("tiny-imagenet", "110,000 colour images, 64x64, 200 classes", tiny_imagenet),
    Entry("imagenet100", "about 132,000 photographs, cut to squares, 100 classes", imagenet100),
    Entry("ham10000", "10,015 images of pigmented lesions, 7 classes, 30 of each held out by lesion", ham10000),
    Entry("folder", "images of your own in class folders", folder),
    Entry("npz", "arrays of your own in a NumPy archive", archive),
)
