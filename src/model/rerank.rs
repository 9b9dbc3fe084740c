//! Orders documents by their scores for a query.

use std::sync::mpsc::channel;

use super::error::ModelError;
use super::handle::Model;
use super::jobs::{EmbedJob, Embedded, Job};

/// A document of [`Model::rerank`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ranked {
    /// The index of the document in the caller's list, from 0.
    pub index: usize,
    /// Larger is better. Most models give a number between 0 and 1.
    pub score: f32,
}

/// The scores of [`Model::rank`], and what their computation took.
#[derive(Clone, Debug)]
pub struct Reranked {
    /// The best document first; equal scores keep the caller's order.
    pub ranked: Vec<Ranked>,
    /// The tokens of all pairs of query and document.
    pub tokens: usize,
    /// The number of tokens of each pair before it was cut, in the caller's order; `None` if it was not cut.
    pub cut_from: Vec<Option<usize>>,
    /// Time and build; the embeddings are empty.
    pub embedded: Embedded,
}

impl Model {
    /// Scores each document for a query, and returns the best document first. The model is a sequence
    /// classifier such as bge-reranker, or any other [model with pairs](models::SentenceConfig::pairs).
    ///
    /// ```no_run
    /// use tracewright::Model;
    ///
    /// let model = Model::open("bge-reranker-base")?;
    /// let best = model.rerank("What do pandas eat?", &["Paris is in France.", "Pandas eat bamboo."])?[0];
    /// assert_eq!(best.index, 1);
    /// # Ok::<(), tracewright::ModelError>(())
    /// ```
    pub fn rerank(&self, query: &str, documents: &[&str]) -> Result<Vec<Ranked>, ModelError> {
        Ok(self.rank(query, documents)?.ranked)
    }

    /// Whether the model scores pairs of texts, for [`rerank`](Self::rerank).
    pub fn reranks(&self) -> bool {
        self.inner.text.sentence.as_ref().is_some_and(|sentence| sentence.pairs.is_some())
    }

    /// Like [`rerank`](Self::rerank), with counts and times. A pair with too many tokens is cut: the longer of
    /// the two texts loses its end.
    pub fn rank(&self, query: &str, documents: &[&str]) -> Result<Reranked, ModelError> {
        let text = &self.inner.text;
        let Some(pairs) = text.sentence.as_ref().and_then(|sentence| sentence.pairs.as_ref()) else {
            let does = if text.sentence.is_some() { "makes embeddings of texts" } else { "continues text" };
            return Err(ModelError::Kind { path: text.path.clone(), does, asked: "score pairs of texts" });
        };
        let (tokenizer, limit) = (text.tokenizer()?, self.info().context);
        let (mut tokens, mut first, mut cut_from) = (Vec::new(), Vec::new(), Vec::new());
        for document in documents {
            let pair = tokenizer.encode_pair_within(query, document, limit)?;
            cut_from.push((pair.tokens.len() < pair.whole).then_some(pair.whole));
            tokens.push(pair.tokens);
            first.push(pair.first);
        }
        let total = tokens.iter().map(Vec::len).sum();
        let mut embedded = self.embed_job(EmbedJob { tokens, first })?;
        let numbers = std::mem::take(&mut embedded.embeddings);
        let numbers = numbers.into_iter().map(|numbers| numbers.first().copied().unwrap_or_default());
        let score = |x: f32| if pairs.is_probability { 1.0 / (1.0 + (-x).exp()) } else { x };
        let ranked = numbers.enumerate().map(|(index, x)| Ranked { index, score: score(x) });
        let mut ranked: Vec<Ranked> = ranked.collect();
        ranked.sort_by(|a, b| b.score.total_cmp(&a.score));
        Ok(Reranked { ranked, tokens: total, cut_from, embedded })
    }

    pub(super) fn embed_job(&self, job: EmbedJob) -> Result<Embedded, ModelError> {
        let (answer, embedded) = channel();
        self.inner.ask(Job::Embed(job, answer))?;
        embedded.recv().map_err(|_| ModelError::Gone)?
    }
}
