"""Parameters of released models as their publishers or others state them, to the unit, by who states them.

Numbers are of the whole model: an output matrix that is the table of tokens counts once. `STORED` are files
that hold it twice, `WITH_IMAGES` those that hold a model of images, too, `UNCONFIRMED` presets of which only
a rounded number was found in public.
"""

from __future__ import annotations

CONFIRMED: dict[str, dict[str, int]] = {
    "model cards of EleutherAI": {
        "gpt-neox-20b": 20_554_567_680,
        "pythia-70m": 70_426_624,
        "pythia-160m": 162_322_944,
        "pythia-410m": 405_334_016,
        "pythia-1b": 1_011_781_632,
        "pythia-1.4b": 1_414_647_808,
        "pythia-2.8b": 2_775_208_960,
        "pythia-6.9b": 6_857_302_016,
        "pythia-12b": 11_846_072_320,
    },
    "announcement of Codestral Mamba": {"mamba-codestral-7b": 7_285_403_648},
    "model card of StableLM-3B-4E1T": {"stablelm-3b": 2_795_443_200},
    "metadata of the published safetensors files": {
        "qwen2.5-0.5b": 494_032_768,
        "qwen2.5-1.5b": 1_543_714_304,
        "qwen2.5-3b": 3_085_938_688,
        "qwen2.5-7b": 7_615_616_512,
        "qwen2.5-72b": 72_706_203_648,
        "qwen3-4b": 4_022_468_096,
        "qwen3-8b": 8_190_735_360,
        "qwen3-32b": 32_762_123_264,
        "qwen1.5-moe-a2.7b": 14_315_784_192,
        "qwen2-57b-a14b": 57_408_658_944,
        "qwen3-30b-a3b": 30_532_122_624,
        "qwen3-235b-a22b": 235_093_634_560,
        "gemma-7b": 8_537_680_896,
        "gemma-2-9b": 9_241_705_984,
        "gemma-2-27b": 27_227_128_320,
        "gemma-3-270m": 268_098_176,
        "gemma-3-1b": 999_885_952,
        "olmo-1b": 1_176_764_416,
        "olmo-2-1b": 1_484_916_736,
        "olmo-2-7b": 7_298_617_344,
        "olmo-2-13b": 13_716_198_400,
        "olmo-2-32b": 32_234_279_936,
        "olmo-hybrid-7b": 7_430_870_688,
        "smollm3-3b": 3_075_098_624,
        "mixtral-8x7b": 46_702_792_704,
        "mixtral-8x22b": 140_620_634_112,
        "gpt-oss-20b": 20_914_757_184,
        "gpt-oss-120b": 116_829_156_672,
        "phi-2": 2_779_683_840,
        "phi-4": 14_659_507_200,
        "stablelm-2-1.6b": 1_644_515_328,
        "stablelm-2-12b": 12_143_185_920,
        "starcoder2-15b": 15_957_889_024,
        "opt-6.7b": 6_658_473_984,
        "all-mpnet-base-v2": 109_486_464,
        "nomic-embed-text-v1.5": 136_731_648,
        "modernbert-base": 149_014_272,  # 149,655,232 with the head of 640,960 that the file holds, too
        "modernbert-large": 394_781_696,  # 395,881,664 with its head of 1,099,968
    },
    "metadata of the published safetensors files, less an output matrix that they repeat (STORED)": {
        "falcon-7b": 6_921_720_704,
        "falcon-40b": 41_303_293_952,
        "falcon-180b": 178_557_088_768,
        "qwen3-0.6b": 596_049_920,
        "qwen3-1.7b": 1_720_574_976,
    },
    "metadata of the published safetensors files, less the part that reads images (WITH_IMAGES)": {
        "gemma-3-4b": 3_880_263_168,
        "gemma-3-12b": 11_766_034_176,
        "gemma-3-27b": 27_009_346_304,
    },
    "KerasHub's list of Falcon presets": {"falcon-rw-1b": 1_311_625_216},
    "logs and tables of people who loaded the published model": {
        "gpt-j-6b": 6_050_882_784,
        "pythia-14m": 14_067_712,
        "pythia-31m": 30_494_720,
        "gemma-2b": 2_506_172_416,
        "gemma-2-2b": 2_614_341_888,
        "olmo-7b": 6_888_095_744,
        "opt-125m": 125_239_296,
        "opt-350m": 331_196_416,
        "opt-1.3b": 1_315_758_080,
        "opt-2.7b": 2_651_596_800,
        "phi-1": 1_418_270_720,
        "phi-1.5": 1_418_270_720,
        "phi-3-mini": 3_821_079_552,
        "phi-3-medium": 13_960_238_080,
        "mamba2-130m": 128_989_632,
        "mamba2-2.7b": 2_702_599_680,
    },
}

STORED = {
    "falcon-7b": 7_217_189_760,
    "falcon-40b": 41_835_970_560,
    "falcon-180b": 179_522_565_120,
    "qwen3-0.6b": 751_632_384,
    "qwen3-1.7b": 2_031_739_904,
}

WITH_IMAGES = {"gemma-3-4b": 4_300_079_472, "gemma-3-12b": 12_187_325_040, "gemma-3-27b": 27_432_406_640}

UNCONFIRMED = {
    "opt-13b": 12_853_473_280,
    "opt-30b": 29_974_540_288,
    "opt-66b": 65_719_701_504,
    "opt-175b": 174_604_468_224,
    "falcon2-11b": 11_102_822_400,
    "starcoder2-3b": 3_030_371_328,
    "starcoder2-7b": 7_173_923_840,
    "mamba2-370m": 368_346_624,
    "mamba2-780m": 780_161_280,
    "mamba2-1.3b": 1_343_757_312,
    "mpnet-base": 109_486_464,
    "nomic-bert-2048": 136_731_648,
}
