"""ImageNet-100: a hundred of ImageNet's classes, in the layout of its folders."""

from __future__ import annotations

from pathlib import Path

from fedbraid.config.registry import whole
from fedbraid.data.dataset import Dataset
from fedbraid.data.datasets.decoding import dataset, decoded_images
from fedbraid.data.datasets.hub_images import class_names, hub_images
from fedbraid.data.datasets.hub_layouts import hub_layout, is_from_hub, part_files
from fedbraid.data.datasets.normal import chosen, of_unit
from fedbraid.data.formats.class_folders import class_folders, images_by_class
from fedbraid.data.formats.image_files import Frame
from fedbraid.data.paths import FileLayout, find
from fedbraid.errors import UserError

LAYOUTS = (FileLayout(("imagenet100", "imagenet-100", "ImageNet100"), ("train", "val")), hub_layout("imagenet100"))
CHANNELS = of_unit((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLASSES = 100


def imagenet100(data_dir: str | Path | None = None, pixels: int = 64, normalise: str = "channels") -> Dataset:
    """About 127,000 and 5,000 colour images: the shorter side scaled to `pixels`, the middle cut out."""
    normal = chosen(normalise, CHANNELS)
    side = whole("pixels", pixels)
    frame = Frame(3, side, side, "crop")
    found = find("imagenet100", data_dir, LAYOUTS)
    if is_from_hub("imagenet100", found):
        parts = part_files("imagenet100", found)
        kept = hub_images("imagenet100", parts, frame, {"y": ("label", CLASSES)})
        return dataset("imagenet100", found.folder, kept, class_names(parts[0], "label", CLASSES), normal)
    classes = class_folders(found.files[0])
    if len(classes) != CLASSES:
        raise UserError(
            f"{found.files[0]} has {len(classes)} class folders and ImageNet-100 has {CLASSES}; "
            "the data set 'folder' takes any number"
        )
    train, test = (images_by_class(folder, classes) for folder in found.files)
    kept = decoded_images("imagenet100", frame, train, test)
    return dataset("imagenet100", found.folder, kept, classes, normal)
