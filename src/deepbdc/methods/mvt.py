"""MVT: class vectors that are also fitted to virtual images, which vary like images of the other classes."""

from deepbdc._modes import separate_random_numbers
from deepbdc.backbones.base import Backbone
from deepbdc.classifiers.variance_transfer import VarianceTransferClassifier
from deepbdc.embedding import Embedding
from deepbdc.methods.base import EpisodicMethod, methods
from deepbdc.pooling import AveragePool
from deepbdc.preprocessing import Preprocessing


@methods.named("mvt")
class MVT(EpisodicMethod):
    """Park et al., "Meta Variance Transfer: Learning to Augment from the Others", ICML 2020.

    The variation of an image of class s around the mean of its class is transferred to another class t, which gives a
    virtual image x̃ = μ_t + a(μ_s, μ_t) ⊙ (x - μ_s) with learnt factors a. The class vectors of a task take a few
    gradient steps on real and virtual images, and classify the queries by τ qᵀw_c (`VarianceTransferClassifier`).
    Episodic training learns the network, a and τ by the cross-entropy of the queries.

    There is no public code, and we know the abstract of the paper only: a meta-learner transfers factors of variation
    from one class to another, and the transferred variations make virtual samples in the feature space of the target
    class during training. A patent abstract of the same time, which may or may not describe this method, adds that a
    virtual vector is made of the means and variations of both classes, and that the class vector is trained on real and
    virtual vectors. The rest is our reading, so this is a method in the manner of MVT. The transfer is a factor for
    each channel, computed from the means of both classes by a small network that starts from the identity; it does not
    look at the variations of class t. Variations go from every class of the task to every other. Class vectors start
    from class means, and are trained by plain gradient steps on normalised representations. The number of steps, their
    rate, the weight of the virtual images and the start of τ are our choice. With one shot nothing varies and no
    virtual images are made; the paper has no result for one shot on CUB, which fits. Inductive.

    Args:
        backbone: From images to feature maps.
        shot: Support images per class; it changes nothing here.
        preprocessing: How images are prepared, if not as the backbone says.
        steps: Gradient steps of the class vectors.
        rate: Rate of these steps.
        virtual: Weight of the virtual images in their loss; the support images have the rest.
        hidden: Width of the small network.
        scale: Start of τ, the parameter group ``scale``. The small network is the group ``transfer``.
    """

    def __init__(
        self,
        backbone: Backbone,
        shot: int = 1,
        preprocessing: Preprocessing | None = None,
        steps: int = 5,
        rate: float = 0.1,
        virtual: float = 0.5,
        hidden: int = 64,
        scale: float = 10.0,
    ) -> None:
        embedding = Embedding(backbone, AveragePool(backbone.out_channels), preprocessing)
        with separate_random_numbers():
            classifier = VarianceTransferClassifier(embedding.out_features, steps, rate, virtual, hidden, scale)
        super().__init__(embedding, classifier)
