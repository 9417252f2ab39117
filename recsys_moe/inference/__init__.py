"""From an artifact to scores, rankings and explanations on raw ids. Never imports Lightning.

predictor: the front, raw ids in; plain: what comes in as plain Python;
vocabulary: raw ids <-> indices; item_filters: `genres=Comedy`.
pair_scores: any pairs of indices, by the model's forward pass, links and calibrations.
catalogue: one user against all items, with the item half of each expert kept.
top_items: the k best of a catalogue; explanation: which experts decided.
ranking: how good the lists of all users of a split are; ranking_rows: what they are judged by;
ranking_figures and ranking_metrics: the figures, of all users, of some, of one.
newcomers: users and items that training has not seen, made of features and histories; told: the
model with them;
feature_values reads these, told_options and told_columns find them in options and files;
new_items: a catalogue with more items.
score_files and recommend_files: the same for files, in pieces that row_files reads and writes.
A score: Predictor.score -> Vocabulary.index -> PairScorer.scores -> the model -> Scores.
A ranking: Predictor.recommend -> TopItems.best -> CatalogueScorer.grid -> Recommendation.
"""
