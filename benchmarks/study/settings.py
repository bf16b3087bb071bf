"""The settings that are compared with networks trained from scratch, the most informative first.

Dropout turned out to matter most for BDC. Therefore the later settings keep it at 0.8 and change one factor each.
"""

from study.scratch import Setting

LOGISTIC, OTHER, BOTH = "own, logistic", "other, logistic", "both, logistic"
PROTOTYPES = ("own, euclidean", "own, euclidean")
RESNET12 = ("backbone.name=resnet12", "backbone.removed_downsamplings=2", "backbone.width=0.2")
FIFTH, HALF, DROPOUT, LONGER = ("dropout=0.2",), ("dropout=0.5",), ("dropout=0.8",), ("pretrain.epochs=30",)
SAME_RATE, SLOWER = "both at the low learning rate", ("meta.lr=2e-3",)
NARROW, BOTH_VECTORS = "ResNet-12, widths 13 to 128", "dropout on both vectors"
ADDED = "another loss, 30 epochs"
ROTATION = ("pretrain.losses.rotation.weight=0.5", "pretrain.losses.rotation.share=0.25")
MIXUP = ("pretrain.own_weight=0", "pretrain.losses.mixup.alpha=2", "pretrain.losses.mixup.layers=[0,1,2,3]")
SEEDS = (("", "", ()), ("-seed-2", ", another seed", ("seed=2",)))  # suffix of the name, suffix of the title, overrides


def after_dropout(
    name: str, factor: str, value: str, *both: str, baseline: tuple[str, ...] = (), bdc: tuple[str, ...] = ()
) -> Setting:
    """A setting with dropout on the BDC vector that changes one factor, for both networks or for only one."""
    return Setting(name, factor, value, both=both, baseline=baseline, bdc=(*DROPOUT, *bdc))


def chosen(name: str, factor: str, value: str, pair: str, baseline: tuple[str, ...] = ()) -> list[Setting]:
    """The settings that are scored on the test classes: thirty epochs, dropout on the BDC vector, two seeds."""
    return [
        Setting(
            name + suffix,
            factor,
            value + words,
            both=(*LONGER, *seed),
            baseline=baseline,
            bdc=DROPOUT,
            pair=pair,
            scoring=(LOGISTIC, LOGISTIC) if pair == "transfer" else PROTOTYPES,
            chosen=True,
        )
        for suffix, words, seed in SEEDS
    ]


SETTINGS = (
    Setting("start", "starting point", "Conv4-64, 10 epochs"),
    Setting("dropout-0.5", "dropout on the BDC vector", "0.5", bdc=HALF),
    Setting("dropout-0.8", "dropout on the BDC vector", "0.8", bdc=DROPOUT),
    Setting("t-fixed", "learning rate of t", "0", bdc=("pretrain.t_lr=0",)),
    Setting("augmentation-paper", "augmentation", "that of the paper", both=("augmentation=paper",)),
    *(
        Setting(name, "the two networks of the starting point", value, scoring=(title, title))
        for name, value, title in (
            ("centred", "logistic, mean vector of the training classes subtracted", "own centred, logistic"),
            ("cosine", "prototypes, cosine", "own, cosine"),
            ("cosine-centred", "prototypes, cosine, mean subtracted", "own centred, cosine"),
            ("inner-product", "prototypes, inner product", "own, inner_product"),
            ("inner-product-centred", "prototypes, inner product, mean subtracted", "own centred, inner_product"),
        )
    ),
    Setting(
        "weighted-after",
        "the two networks of the starting point",
        "√2 off the diagonal",
        scoring=(LOGISTIC, "own weighted, logistic"),
    ),
    Setting(
        "afterwards", "trained with average pooling", "then BDC pooling", pair="afterwards", scoring=(LOGISTIC, OTHER)
    ),
    Setting(
        "together", "trained with average pooling", "then both poolings", pair="afterwards", scoring=(LOGISTIC, BOTH)
    ),
    Setting("resnet12-dropout-0.5", NARROW, "10 epochs", both=RESNET12, bdc=HALF),
    Setting("meta", "episodes", "after 10 epochs", pair="meta", scoring=PROTOTYPES),
    Setting("meta-dropout", "episodes", "after 10 epochs", bdc=HALF, pair="meta", scoring=PROTOTYPES),
    Setting(
        "meta-rate",
        "episodes",
        f"after 10 epochs, {SAME_RATE}",
        baseline=SLOWER,
        bdc=HALF,
        pair="meta",
        scoring=PROTOTYPES,
    ),
    *chosen("epochs-30", "length of training", "30 epochs", "transfer"),
    *chosen("meta-epochs-30", "episodes", f"after 30 epochs, {SAME_RATE}", "meta", SLOWER),
    *chosen(
        "meta-against-no-episodes",
        "episodes",
        "for BDC only; the baseline is Good-Embed with the nearest prototype, 30 epochs",
        "meta against transfer",
    ),
    after_dropout("distill-1", "distillation", "1 generation", "distill.generations=1"),
    after_dropout("weight-decay-2e-3", "weight decay", "2e-3", "pretrain.weight_decay=2e-3"),
    after_dropout("removed-0", "removed down-samplings", "0", "backbone.removed_downsamplings=0"),
    after_dropout("removed-1", "removed down-samplings", "1", "backbone.removed_downsamplings=1"),
    after_dropout("lr-0.02", "learning rate", "0.02", "pretrain.lr=0.02"),
    after_dropout("lr-0.1", "learning rate", "0.1", "pretrain.lr=0.1"),
    after_dropout("reduce-32", "reduction", "32", bdc=("options.reduce_to=32",)),
    after_dropout("reduce-64", "reduction", "64", bdc=("options.reduce_to=64",)),
    after_dropout("reduce-128", "reduction", "128", bdc=("options.reduce_to=128",)),
    after_dropout("reduce-196", "reduction", "196", bdc=("options.reduce_to=196",)),
    after_dropout("weighted", "trained with √2 off the diagonal", "", bdc=("options.output=weighted",)),
    after_dropout("t-lr-of-network", "learning rate of t", "same as the network", bdc=("pretrain.t_lr=null",)),
    after_dropout("resnet12-dropout-0.8", NARROW, "10 epochs", *RESNET12),
    after_dropout("epochs-60", "length of training", "60 epochs", "pretrain.epochs=60"),
    after_dropout("rotation", ADDED, "for BDC: rotations of a quarter of the images, added", *LONGER, bdc=ROTATION),
    after_dropout("mixup", ADDED, "for BDC: manifold mixup, instead of cross-entropy", *LONGER, bdc=MIXUP),
    after_dropout("width-2", "width", "128 channels", "backbone.width=2"),
    after_dropout("distill-2", "distillation", "2 generations", "distill.generations=2"),
    Setting(
        "meta-resnet12",
        NARROW,
        f"episodes, {SAME_RATE}",
        both=RESNET12,
        baseline=SLOWER,
        bdc=DROPOUT,
        pair="meta",
        scoring=PROTOTYPES,
    ),
    Setting("dropout-both-0.5", BOTH_VECTORS, "0.5, 10 epochs", both=HALF),
    Setting("dropout-both-0.8", BOTH_VECTORS, "0.8, 10 epochs", both=DROPOUT),
    after_dropout("dropout-both-0.5-epochs-30", BOTH_VECTORS, "0.5 for Good-Embed, 30 epochs", *LONGER, baseline=HALF),
    *chosen("dropout-both-0.2-epochs-30", BOTH_VECTORS, "0.2 for Good-Embed, 30 epochs", "transfer", FIFTH),
    *chosen(
        "meta-dropout-both-0.2-epochs-30",
        BOTH_VECTORS,
        f"episodes, {SAME_RATE}, after 30 epochs, 0.2 for ProtoNet",
        "meta",
        (*FIFTH, *SLOWER),
    ),
)
