"""What is compared from scratch, the most telling first."""

from study.scratch import Setting

EUCLIDEAN = ("own, euclidean", "own, euclidean")

SETTINGS = (
    Setting("start", "start", "Conv4-64, 10 epochs", chosen=True),
    Setting("dropout-0.5", "dropout on the BDC vector", "0.5", bdc=("dropout=0.5",)),
    Setting("t-fixed", "learning rate of t", "0", bdc=("pretrain.t_lr=0",)),
    Setting("dropout-0.8", "dropout on the BDC vector", "0.8", bdc=("dropout=0.8",)),
    Setting("augmentation-paper", "augmentation", "the paper's", both=("augmentation=paper",)),
    Setting("weight-decay-2e-3", "weight decay", "2e-3", both=("pretrain.weight_decay=2e-3",)),
    Setting("meta", "start", "Conv4-64, 10 epochs, then episodes", pair="meta", scoring=EUCLIDEAN, chosen=True),
    Setting("reduce-32", "reduction", "32", bdc=("options.reduce_to=32",)),
    Setting("reduce-128", "reduction", "128", bdc=("options.reduce_to=128",)),
    Setting("removed-1", "removed down-samplings", "1", both=("backbone.removed_downsamplings=1",)),
)
