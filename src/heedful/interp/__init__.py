"""Look inside a model: what it attends to, what each layer predicts, which parts carry an answer.

    observe/     attention, logit_attribution, lens (logit_lens, tuned_lens, surprisal), states, prediction, …
    intervene/   switch parts off (ablation), patch values and trace paths (patching), steer (steering)
    learn/       linear_probes (probes), train_dictionary (dictionary), catalogue_heads (head_catalogue)
    gradients, measurements     attribution by gradients; speed, loss and the shuffle test
    inputs, activations         text → a model's input; activations of many texts

The functions work on the parts of a model and never ask which model it is. The public ones are loaded when
first used (PEP 562): `from heedful.interp import activation_patching, logit_lens, steer`.
"""

from heedful.core.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
