"""From an artifact to scores, rankings and explanations on raw ids. Never imports Lightning.

predictor: the front, raw ids in; plain: what comes in as plain Python;
vocabulary: raw ids <-> indices; threads: one part of the work each.
scoring, ranking, cold_start, attribution, evaluation, files: packages with a line each.
A score: Predictor.score -> ColdStart.resolve -> PairScorer.scores -> the model -> Scores.
A ranking: Predictor.recommend -> TopItems.best -> Ranker.grid -> Recommendation.
"""
