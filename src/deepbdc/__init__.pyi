from .backbones import create_backbone as create_backbone
from .backbones import list_backbones as list_backbones
from .classifiers import create_classifier as create_classifier
from .classifiers import list_classifiers as list_classifiers
from .data.loading import list_datasets as list_datasets
from .data.loading import load_dataset as load_dataset
from .embedding import Embedding as Embedding
from .ensemble import Ensemble as Ensemble
from .episodes import sample_episodes as sample_episodes
from .errors import UserError as UserError
from .estimator import FewShotClassifier as FewShotClassifier
from .evaluation import evaluate as evaluate
from .gallery import load_result as load_result
from .methods import Method as Method
from .methods import create_method as create_method
from .methods import list_methods as list_methods
from .pooling import BDCPool as BDCPool
from .released import load_released_checkpoint as load_released_checkpoint
from .statistic import bd_correlation as bd_correlation
from .statistic import bdc as bdc
from .statistic import bdc_matrix as bdc_matrix
from .statistic import bdc_vector as bdc_vector
from .statistic import distance_matrix as distance_matrix
from .statistic import double_center as double_center
from .zoo import load_pretrained as load_pretrained

__version__: str
