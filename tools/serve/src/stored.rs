//! Keeps responses in memory, so that later requests continue them.

use std::collections::VecDeque;
use std::sync::Mutex;

use serde_json::Value;

use crate::sync::lock;

/// The most responses that the server keeps. At a limit, the server drops the oldest ones.
const RESPONSES: usize = 1000;

/// The most bytes of JSON that the server keeps.
const BYTES: usize = 64 << 20;

/// The hash of a request's API key; `None` on a server without keys. Only the owner of a response can use it.
pub type Owner = Option<blake3::Hash>;

/// A response, and the items of the conversation before it, as JSON.
struct StoredResponse {
    owner: Owner,
    id: String,
    response: String,
    input: String,
    /// The ids of the response's output items.
    items: Vec<String>,
}

/// The responses of a server, the oldest first.
#[derive(Default)]
pub struct ResponseStore(Mutex<VecDeque<StoredResponse>>);

impl StoredResponse {
    fn bytes(&self) -> usize {
        self.response.len() + self.input.len()
    }

    fn is(&self, id: &str, owner: Owner) -> bool {
        self.id == id && self.owner == owner
    }

    fn response(&self) -> Value {
        files::parse_exact(&self.response).unwrap_or_default()
    }
}

impl ResponseStore {
    /// Keeps a response with the items of its conversation, unless it alone is larger than the limit.
    pub fn keep(&self, response: &Value, input: &[Value], owner: Owner) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let items =
            response["output"].as_array().into_iter().flatten().map(|item| text(&item["id"])).collect();
        let stored = StoredResponse {
            owner,
            id: text(&response["id"]),
            response: files::exact_json(response),
            input: files::exact_json(&Value::from(input)),
            items,
        };
        if stored.bytes() > BYTES {
            return;
        }
        let mut all = lock(&self.0);
        all.push_back(stored);
        while all.len() > RESPONSES || all.iter().map(StoredResponse::bytes).sum::<usize>() > BYTES {
            all.pop_front();
        }
    }

    pub fn get(&self, id: &str, owner: Owner) -> Option<Value> {
        lock(&self.0).iter().find(|one| one.is(id, owner)).map(StoredResponse::response)
    }

    /// Returns the items of the conversation up to the end of a response.
    pub fn conversation(&self, id: &str, owner: Owner) -> Option<Vec<Value>> {
        let all = lock(&self.0);
        let stored = all.iter().find(|one| one.is(id, owner))?;
        let mut items: Vec<Value> = files::parse_exact(&stored.input).unwrap_or_default();
        items.extend(stored.response()["output"].as_array().cloned().unwrap_or_default());
        Some(items)
    }

    /// Returns an output item of any stored response of the owner.
    pub fn item(&self, id: &str, owner: Owner) -> Option<Value> {
        let all = lock(&self.0);
        let mut own = all.iter().rev().filter(|one| one.owner == owner);
        let stored = own.find(|one| one.items.iter().any(|item| item == id))?;
        stored.response()["output"].as_array()?.iter().find(|item| item["id"] == id).cloned()
    }

    /// Returns whether the server kept the response.
    pub fn delete(&self, id: &str, owner: Owner) -> bool {
        let mut all = lock(&self.0);
        let before = all.len();
        all.retain(|one| !one.is(id, owner));
        all.len() < before
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_oldest_responses_are_dropped() {
        let store = ResponseStore::default();
        let response = |id: usize, text: &str| json!({ "id": format!("r{id}"), "output": [{ "id": "m", "text": text }] });
        for id in 0..=RESPONSES {
            store.keep(&response(id, ""), &[], None);
        }
        let has = |id: &str| store.get(id, None).is_some();
        assert!(!has("r0") && has("r1"));
        let long = "a".repeat(BYTES / 3);
        for id in 5000..5003 {
            store.keep(&response(id, &long), &[], None);
        }
        assert!(!has("r5000") && has("r5001"));
        assert_eq!(store.conversation("r5002", None).map(|items| items.len()), Some(1));
        assert_eq!(store.item("m", None).map(|item| item["text"] == *long), Some(true));
        // A response that is larger than the limit is not kept, and replaces no others.
        store.keep(&response(6000, &"a".repeat(BYTES)), &[], None);
        assert!(!has("r6000") && has("r5001") && has("r5002"));
    }

    #[test]
    fn only_the_owner_uses_a_response() {
        let store = ResponseStore::default();
        let owner = |key: &str| Some(blake3::hash(key.as_bytes()));
        let (ours, theirs) = (owner("ours"), owner("theirs"));
        store.keep(&json!({ "id": "r", "output": [{ "id": "m" }] }), &[], ours);
        for other in [theirs, None] {
            assert!(store.get("r", other).is_none() && store.conversation("r", other).is_none());
            assert!(store.item("m", other).is_none() && !store.delete("r", other));
        }
        assert!(store.get("r", ours).is_some() && store.conversation("r", ours).is_some());
        assert!(store.item("m", ours).is_some() && store.delete("r", ours));
    }
}
