"""The vision encoder against transformers' RadioModel, live: features and every gradient.

    BRAID=build/braid python -m pytest tests/oracles/radio_test.py
"""

import json
import os

import pytest
import torch
from safetensors.torch import load_file
from transformers import RadioConfig, RadioModel

from hf_models import (OUTPUT_BAR, assert_close, assert_names, assert_same_gradients, braid_forward, gradients,
                       randomise, refusal, run_braid, under_both_names)

PATCH = 16
SIZES = dict(
    hidden_size=32, num_hidden_layers=3, num_attention_heads=4, mlp_ratio=3.0, layer_norm_eps=1e-4,
    max_img_size=96,  # a position table of 6 x 6 patches
    num_cls_tokens=2, num_registers=3,
    norm_mean=(0.4, 0.5, 0.45), norm_std=(0.2, 0.25, 0.3),
)
IMAGES = [(64, 64), (96, 96), (64, 128), (160, 96)]  # smaller than the table, as large, wider, taller


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """models(**config) is a model and the folder that it is saved in."""
    made = {}

    def get(**config):
        key = json.dumps(config)
        if key not in made:
            config = RadioConfig(**{**SIZES, **config})
            config._attn_implementation = "eager"
            model = randomise(RadioModel(config), seed=len(made))
            folder = tmp_path_factory.mktemp("radio")
            model.save_pretrained(folder)
            made[key] = model, folder
        return made[key]

    return get


def patches_of(image):
    """[1, 3, H, W] -> [H / 16 * W / 16, 3 * 16 * 16], patches row by row, each channel by channel."""
    rows, columns = image.shape[2] // PATCH, image.shape[3] // PATCH
    cut = image[0].reshape(3, rows, PATCH, columns, PATCH)
    return cut.permute(1, 3, 0, 2, 4).reshape(rows * columns, 3 * PATCH * PATCH)


def transformers_forward(model, images, features_grads=None):
    """Features of each image batch, and the gradients of sum(features * features_grad) over all of them."""
    model.zero_grad()
    features = [model(image).features for image in images]
    features_grads = features_grads or [torch.ones_like(x) for x in features]
    sum((x * g).sum() for x, g in zip(features, features_grads)).backward()
    return [x.detach() for x in features], under_both_names(model, gradients(model))


def batch_case(model, batch, height, width):
    torch.manual_seed(height * width)
    pixels = torch.rand(batch, 3, height, width)
    features_grad = torch.randn(batch, height * width // PATCH**2, model.config.hidden_size)
    features, grads = transformers_forward(model, [pixels], [features_grad])
    return {"pixel_values": pixels, "features_grad": features_grad}, features[0], grads


def packed_case(model, sizes):
    torch.manual_seed(len(sizes))
    images = [torch.rand(1, 3, height, width) for height, width in sizes]
    features_grads = [torch.randn(1, h * w // PATCH**2, model.config.hidden_size) for h, w in sizes]
    features, grads = transformers_forward(model, images, features_grads)
    inputs = {"patches": torch.cat([patches_of(image) for image in images]), "imgs_sizes": torch.tensor(sizes),
              "features_grad": torch.cat(features_grads, 1)[0]}
    return inputs, torch.cat(features, 1)[0], grads


def assert_same(got, features, grads):
    assert_close("features", got["features"], features, OUTPUT_BAR)
    assert_same_gradients(got, grads)


@pytest.mark.parametrize("height, width", IMAGES)
def test_agrees_with_transformers(height, width, models, tmp_path):
    model, folder = models()
    inputs, features, grads = batch_case(model, 2, height, width)
    assert_same(braid_forward(tmp_path, folder, inputs, "--grads"), features, grads)


def test_without_bias_of_query_key_and_value(models, tmp_path):
    model, folder = models(qkv_bias=False)
    inputs, features, grads = batch_case(model, 1, 64, 96)
    assert_same(braid_forward(tmp_path, folder, inputs, "--grads"), features, grads)


def test_loss_is_the_sum_of_features_unless_told_otherwise(models, tmp_path):
    model, folder = models()
    pixels = torch.rand(2, 3, 64, 96)
    features, grads = transformers_forward(model, [pixels])
    assert_same(braid_forward(tmp_path, folder, {"pixel_values": pixels}, "--grads"), features[0], grads)


def test_packed_images_do_not_see_each_other(models, tmp_path):
    model, folder = models()
    inputs, features, grads = packed_case(model, IMAGES + [(16, 32)])
    assert_same(braid_forward(tmp_path, folder, inputs, "--grads"), features, grads)


@pytest.mark.parametrize("layout", ["--tp 2", "--pp 2", "--dp 2", "--tp 2 --recompute"])
def test_layouts_agree_with_transformers(layout, models, tmp_path):
    model, folder = models()
    inputs, features, grads = batch_case(model, 2, 64, 128)
    assert_same(braid_forward(tmp_path, folder, inputs, f"--grads {layout}"), features, grads)


@pytest.mark.parametrize("layout", ["--tp 2", "--pp 2"])
def test_packed_layouts_agree_with_transformers(layout, models, tmp_path):
    model, folder = models()
    inputs, features, grads = packed_case(model, IMAGES)
    assert_same(braid_forward(tmp_path, folder, inputs, f"--grads {layout}"), features, grads)


def test_outputs_may_lie_in_the_working_folder(models, tmp_path, monkeypatch):
    _, folder = models()
    monkeypatch.setenv("BRAID", os.path.abspath(os.environ["BRAID"]))
    monkeypatch.chdir(tmp_path)
    result = run_braid(tmp_path, folder, {"pixel_values": torch.rand(1, 3, 64, 64)}, "", "new.safetensors")
    assert result.returncode == 0, result.stderr
    assert "features" in load_file("new.safetensors")


BAD_INPUTS = {
    "no image": ({"features_grad": torch.ones(1, 16, 32)}, ["pixel_values", "patches"]),
    "half a patch": ({"pixel_values": torch.rand(1, 3, 64, 72)}, ["pixel_values", "72", "16"]),
    "two channels": ({"pixel_values": torch.rand(1, 2, 64, 64)}, ["pixel_values", "[1, 2, 64, 64]"]),
    "patches without sizes": ({"patches": torch.rand(4, 768)}, ["imgs_sizes"]),
    "patches of another size": ({"patches": torch.rand(4, 767), "imgs_sizes": torch.tensor([[32, 32]])},
                                ["patches", "[4, 767]", "768"]),
    "sizes that do not add up": ({"patches": torch.rand(5, 768), "imgs_sizes": torch.tensor([[32, 32]])},
                                 ["imgs_sizes", "4", "5"]),
    "a gradient of another shape": ({"pixel_values": torch.rand(1, 3, 64, 64), "features_grad": torch.ones(1, 15, 32)},
                                    ["features_grad", "[1, 15, 32]", "[1, 16, 32]"]),
}


@pytest.mark.parametrize("inputs, parts", BAD_INPUTS.values(), ids=BAD_INPUTS)
def test_bad_inputs(inputs, parts, models, tmp_path):
    _, folder = models()
    assert_names(refusal(tmp_path, folder, inputs, "--grads"), *parts)


def test_tp_that_does_not_divide(models, tmp_path):
    _, folder = models()
    message = refusal(tmp_path, folder, {"pixel_values": torch.rand(1, 3, 64, 64)}, "--tp 3")
    assert_names(message, "tp=3", "use tp=2")
