from heedful.word2vec.corpus import Corpus as Corpus
from heedful.word2vec.corpus import Phrases as Phrases
from heedful.word2vec.corpus import find_phrases as find_phrases
from heedful.word2vec.evaluation import evaluate as evaluate
from heedful.word2vec.hyperparameters import Settings as Settings
from heedful.word2vec.vectors import Ranking as Ranking
from heedful.word2vec.vectors import Word2Vec as Word2Vec
