"""What is compared from scratch, the most telling first."""

from study.scratch import Setting

LOGISTIC, OTHER, BOTH = "own, logistic", "other, logistic", "both, logistic"
PROTOTYPES = ("own, euclidean", "own, euclidean")
RESNET12 = ("backbone.name=resnet12", "backbone.removed_downsamplings=2", "backbone.width=0.2")

SETTINGS = (
    Setting("start", "start", "Conv4-64, 10 epochs", chosen=True),
    Setting("dropout-0.5", "dropout on the BDC vector", "0.5", bdc=("dropout=0.5",)),
    Setting("dropout-0.8", "dropout on the BDC vector", "0.8", bdc=("dropout=0.8",)),
    Setting("t-fixed", "learning rate of t", "0", bdc=("pretrain.t_lr=0",)),
    Setting("augmentation-paper", "augmentation", "the paper's", both=("augmentation=paper",)),
    Setting(
        "resnet12-dropout-0.5",
        "ResNet-12, widths 13 to 128",
        "dropout 0.5",
        both=RESNET12,
        bdc=("dropout=0.5",),
    ),
    Setting("weight-decay-2e-3", "weight decay", "2e-3", both=("pretrain.weight_decay=2e-3",)),
    *(
        Setting(name, "same two networks", value, scoring=(title, title))
        for name, value, title in (
            ("centred", "logistic, mean vector of the training classes subtracted", "own centred, logistic"),
            ("cosine", "prototypes, cosine", "own, cosine"),
            ("cosine-centred", "prototypes, cosine, mean subtracted", "own centred, cosine"),
            ("inner-product", "prototypes, inner product", "own, inner_product"),
            ("inner-product-centred", "prototypes, inner product, mean subtracted", "own centred, inner_product"),
        )
    ),
    Setting("weighted", "same two networks", "√2 off the diagonal", scoring=(LOGISTIC, "own weighted, logistic")),
    Setting("afterwards", "trained with average pooling", "then BDC", pair="afterwards", scoring=(LOGISTIC, OTHER)),
    Setting("together", "trained with average pooling", "then both", pair="afterwards", scoring=(LOGISTIC, BOTH)),
    Setting("meta", "episodes after the start", "Conv4-64", pair="meta", scoring=PROTOTYPES, chosen=True),
    Setting("reduce-32", "reduction", "32", bdc=("options.reduce_to=32",)),
    Setting("reduce-128", "reduction", "128", bdc=("options.reduce_to=128",)),
    Setting("removed-1", "removed down-samplings", "1", both=("backbone.removed_downsamplings=1",)),
)
