//! [`MemoryLedger`] counts the memory of all models, so that the server stays below a limit.

use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use crate::sync::lock;

/// The memory of the models that are loaded, are being loaded, or are being freed.
#[derive(Default)]
pub struct MemoryLedger {
    used: Mutex<u64>,
    freed: Notify,
}

/// The memory of one model, until the value is dropped.
pub struct HeldMemory {
    ledger: Arc<MemoryLedger>,
    bytes: u64,
}

impl MemoryLedger {
    /// Takes memory if the sum stays at or below the limit.
    pub fn take(self: &Arc<Self>, bytes: u64, limit: u64) -> Option<HeldMemory> {
        let mut used = lock(&self.used);
        let sum = used.saturating_add(bytes);
        if sum > limit {
            return None;
        }
        *used = sum;
        Some(HeldMemory { ledger: self.clone(), bytes })
    }

    pub fn used(&self) -> u64 {
        *lock(&self.used)
    }

    /// Waits until a model is freed.
    pub async fn freed(&self) {
        self.freed.notified().await;
    }
}

impl HeldMemory {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for HeldMemory {
    fn drop(&mut self) {
        let mut used = lock(&self.ledger.used);
        *used = used.saturating_sub(self.bytes);
        self.ledger.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_stays_below_the_limit() {
        let ledger = Arc::new(MemoryLedger::default());
        let first = ledger.take(60, 100);
        assert!(first.is_some() && ledger.take(41, 100).is_none());
        let second = ledger.take(40, 100);
        assert!(second.is_some() && ledger.take(1, 100).is_none());
        drop(first);
        assert!(ledger.take(61, 100).is_none() && ledger.take(60, 100).is_some());
        assert!(ledger.take(u64::MAX, 100).is_none());
    }
}
