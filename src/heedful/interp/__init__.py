"""Looking inside: what a model attends to, predicts on the way, and does without a head; every number real.

    inputs      text or ids → what a model reads, with the names of its tokens
    attention   every pattern by its watched name, scores of heads, rollout
    lens        what each layer would predict; surprisal; neighbours of hidden states
    change      heads and layers switched off, heads taken out for good
    patching    values of one input put into another: which carry the answer (`comparison`, `interventions`)
    logit_attribution      what every part adds to a logit by itself
    attribution_patching   patches and edges by gradients; `path_patching` one write for one read alone
    attribution_graph, attention_flow   the strongest edges; what can flow through attention
    activations            values of many texts in batches; `steering` pushes along a direction while writing
    head_catalogue, probes what heads look at (`syntax_heads`: in parses); what layers tell of words
    dictionary, tuned_lens sparse autoencoders and transcoders (`dictionary_scores`); a trained logit lens
    gradients   which tokens an answer hangs on; how far a gradient reaches
    prediction  what comes out at a position, and how a token is drawn from it; `order` shuffles the text
    states      what is carried from token to token; `position_parts` how a model knows where a token stands
    word_vectors, measurements   tables of vectors; loss by place and speed by length
    tokenization           how a tokenizer cuts a text: merges replayed, the lattice of a unigram model

It works on the assembly and never asks which model it is.
"""
