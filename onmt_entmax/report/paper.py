"""The numbers of the paper's tables (Peters, Niculae and Martins, ACL 2019), to be shown beside ours."""

from __future__ import annotations

# Table 1: (output alpha, attention alpha) -> accuracy: high avg., high ens., medium avg., medium ens.
TABLE1 = {
    (1.0, 1.0): (93.15, 94.20, 82.55, 85.68),
    (1.0, 1.5): (92.32, 93.50, 83.20, 85.63),
    (1.0, 2.0): (90.98, 92.60, 83.13, 85.65),
    (1.5, 1.0): (94.36, 94.96, 84.88, 86.38),
    (1.5, 1.5): (94.44, 95.00, 84.93, 86.55),
    (1.5, 2.0): (94.05, 94.74, 84.93, 86.59),
    (2.0, 1.0): (94.59, 95.10, 84.95, 86.41),
    (2.0, 1.5): (94.47, 95.01, 85.03, 86.61),
    (2.0, 2.0): (94.32, 94.89, 84.96, 86.47),
}
TABLE1_UZH = (None, 96.00, None, 86.64)  # Makarov and Clematide (2018), the best submission
TABLE1_TASK = "conll2018.1"
TABLE1_LANGUAGES = {"high": 86, "medium": 102}

# Table 2: alpha -> direction -> tokenised BLEU, its standard deviation over three runs
DIRECTIONS = ("de-en", "en-de", "ja-en", "en-ja", "ro-en", "en-ro")
TABLE2_LINES = {"de": 206112, "ja": 329882, "ro": 612422}  # training sentence pairs, with English
TABLE2 = {
    1.0: ((25.70, 0.15), (21.86, 0.09), (20.22, 0.08), (25.21, 0.29), (29.12, 0.18), (28.12, 0.18)),
    1.5: ((26.17, 0.13), (22.42, 0.08), (20.55, 0.30), (26.00, 0.31), (30.15, 0.06), (28.84, 0.10)),
    2.0: ((24.69, 0.22), (20.82, 0.19), (18.54, 0.11), (23.84, 0.37), (29.20, 0.16), (28.03, 0.16)),
}

# Table 3: alpha -> source words attended to, target words of non-zero probability (de-en validation set)
TABLE3 = {1.0: (24.25, 17993.0), 1.5: (5.55, 16.13), 2.0: (3.75, 7.55)}
