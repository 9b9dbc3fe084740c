//! Streams answers as server-sent events or as lines of JSON.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use futures_util::{Stream, StreamExt as _};
use serde_json::Value;

use crate::answers::Answers;
use crate::failure::Failure;
use crate::update::Update;

/// A server-sent event for the client.
pub enum Sent {
    /// A server-sent event without a name; the variant contains the event's data.
    Data(Value),
    /// A server-sent event with a name; the variant contains the name and the event's data.
    Named(&'static str, Value),
    /// The last event of OpenAI's streams, whose data is `[DONE]`.
    Done,
}

/// Converts the updates of answers to the events that an API defines.
pub trait Events: Send + 'static {
    /// Returns the events that the server sends before the first update of an answer.
    fn begin(&mut self) -> Vec<Sent>;
    /// Returns the events for one update of an answer.
    fn update(&mut self, index: usize, update: Update) -> Vec<Sent>;
    /// Returns the events that the server sends after the last update of the answers.
    fn finish(&mut self) -> Vec<Sent>;
    /// Returns the events that report a failure. A failure ends the stream.
    fn fail(&mut self, failure: &Failure) -> Vec<Sent> {
        vec![Sent::Data(failure.json())]
    }
}

/// If the server has sent no event for this duration, the server sends a comment. Some proxies
/// would close a connection on which no data arrives.
pub const SILENCE: Duration = Duration::from_secs(15);

struct State<E> {
    answers: Answers,
    events: E,
    ready: VecDeque<Sent>,
    is_over: bool,
}

/// Creates a response that sends each event immediately. If the client closes the connection, the
/// generation stops.
pub fn respond<E: Events>(answers: Answers, events: E) -> Response {
    let stream = sent(answers, events).map(|sent| Ok::<_, Infallible>(event(&sent)));
    unbuffered(Sse::new(stream).keep_alive(KeepAlive::new().interval(SILENCE)).into_response())
}

/// Creates a response that sends each event immediately as a line of JSON.
pub fn lines<E: Events>(answers: Answers, events: E) -> Response {
    let stream = sent(answers, events).map(|sent| Ok::<_, Infallible>(line(&sent)));
    unbuffered(([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(stream)).into_response())
}

fn sent<E: Events>(answers: Answers, mut events: E) -> impl Stream<Item = Sent> {
    let ready = events.begin().into();
    let state = State { answers, events, ready, is_over: false };
    unfold(state, |mut state| async move {
        loop {
            if let Some(sent) = state.ready.pop_front() {
                return Some((sent, state));
            }
            if state.is_over {
                return None;
            }
            state.next().await;
        }
    })
}

/// Without this header, some proxies buffer events.
pub fn unbuffered(mut response: Response) -> Response {
    let name = HeaderName::from_static("x-accel-buffering");
    response.headers_mut().insert(name, HeaderValue::from_static("no"));
    response
}

impl<E: Events> State<E> {
    async fn next(&mut self) {
        let new = match self.answers.next().await {
            Some(Ok((index, update))) => self.events.update(index, update),
            Some(Err(failure)) => {
                tracing::warn!("{}: {failure}", self.answers.request());
                self.is_over = true;
                self.events.fail(&failure)
            }
            None => {
                self.is_over = true;
                self.events.finish()
            }
        };
        self.ready.extend(new);
    }
}

fn line(sent: &Sent) -> String {
    match sent {
        Sent::Data(value) | Sent::Named(_, value) => files::exact_json(value) + "\n",
        Sent::Done => String::new(),
    }
}

pub fn event(sent: &Sent) -> Event {
    match sent {
        Sent::Data(value) => Event::default().data(files::exact_json(value)),
        Sent::Named(name, value) => Event::default().event(name).data(files::exact_json(value)),
        Sent::Done => Event::default().data("[DONE]"),
    }
}
