//! Adapters among which the requests of an open model choose.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use irpa::ModelFiles;
use models::{LoraMatrices, Opened};
use program::AdapterRoom;

use super::source::Source;
use super::{ModelError, OpenOptions};
use crate::named_adapter::NamedAdapter;

/// The rank for which a model with room for other adapters is compiled, unless an option sets another.
const RANK: usize = 16;

/// The most places for adapters.
const MOST: usize = 1024;

/// The largest rank, as in PEFT's adapters of whole matrices.
const MOST_RANK: usize = 8192;

/// An adapter in one of the places of a model. The place is free after the last handle and the last request were
/// dropped.
pub(super) struct LoadedAdapter {
    pub adapter: NamedAdapter,
    /// From 1; the engine's index.
    pub index: u32,
}

/// The places for adapters of a model.
pub(super) struct Adapters {
    pub files: ModelFiles,
    pub network: Opened,
    pub room: AdapterRoom,
    table: Mutex<AdapterTable>,
}

/// The places, and the matrices of the adapters in the options.
pub(super) type ReadAdapters = (Arc<Adapters>, Vec<LoraMatrices>);

#[derive(Default)]
pub(super) struct AdapterTable {
    pub named: Vec<Arc<LoadedAdapter>>,
    /// For each place, the adapter that is or was there.
    places: Vec<Weak<LoadedAdapter>>,
}

impl Adapters {
    /// Reads the adapters of the options, and returns their matrices; `None` if requests cannot choose adapters.
    pub fn read(
        files: &ModelFiles,
        source: &Source,
        options: &OpenOptions,
    ) -> Result<Option<ReadAdapters>, ModelError> {
        let OpenOptions { lora_adapters, max_loras, max_lora_rank, .. } = options;
        if lora_adapters.is_empty() && max_loras.is_none() && max_lora_rank.is_none() {
            return Ok(None);
        }
        let path = || files.path().to_owned();
        let refuse =
            |does| ModelError::Kind { path: path(), does, asked: "choose an adapter for each request" };
        let Source::Checkpoint(network) = source else { return Err(refuse("is already compiled")) };
        if network.sentence().is_some() {
            return Err(refuse("computes embeddings"));
        }
        if network.kind.speech().is_some() {
            return Err(refuse("transcribes speech"));
        }
        if options.plugin.is_some() {
            return Err(refuse("runs in XLA"));
        }
        for (index, one) in lora_adapters.iter().enumerate() {
            if lora_adapters[..index].iter().any(|other| other.name == one.name) {
                return Err(ModelError::AdapterName { name: one.name.clone() });
            }
        }
        for (option, found, most) in
            [("max_loras", max_loras, MOST), ("max_lora_rank", max_lora_rank, MOST_RANK)]
        {
            if let Some(found) = found.filter(|found| !(1..=most).contains(found)) {
                return Err(ModelError::AdapterLimit { option, found, most });
            }
        }
        let count = max_loras.unwrap_or(lora_adapters.len().max(1));
        if count < lora_adapters.len() {
            return Err(ModelError::AdapterRoom { count });
        }
        let read = lora_adapters.iter().map(|one| network.lora_matrices(files, &one.path));
        let read = read.collect::<Result<Vec<LoraMatrices>, _>>()?;
        let has_room = count > lora_adapters.len();
        let rank = max_lora_rank.or(has_room.then_some(RANK));
        let room = AdapterRoom::new(count, rank, &read);
        let (files, network) = (files.clone(), Opened::clone(network));
        Ok(Some((Arc::new(Self { files, network, room, table: Mutex::default() }), read)))
    }

    pub fn table(&self) -> MutexGuard<'_, AdapterTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AdapterTable {
    fn find(&self, name: &str) -> Option<usize> {
        self.named.iter().position(|one| one.adapter.name == name)
    }

    pub fn index_of(&self, name: &str) -> Result<usize, ModelError> {
        self.find(name).ok_or_else(|| {
            let known = self.named.iter().map(|one| one.adapter.name.clone()).collect();
            ModelError::UnknownAdapter { name: name.to_owned(), known }
        })
    }

    pub fn check_new(&self, name: &str) -> Result<(), ModelError> {
        self.find(name).map_or(Ok(()), |_| Err(ModelError::AdapterName { name: name.to_owned() }))
    }

    /// Gives an adapter a free place. While the result exists, no other adapter takes the place.
    pub fn placed(&mut self, adapter: NamedAdapter, count: usize) -> Result<Arc<LoadedAdapter>, ModelError> {
        self.places.resize(count, Weak::new());
        let free = self.places.iter().position(|place| place.strong_count() == 0);
        let place = free.ok_or(ModelError::AdapterRoom { count })?;
        let loaded = Arc::new(LoadedAdapter { adapter, index: place as u32 + 1 });
        self.places[place] = Arc::downgrade(&loaded);
        Ok(loaded)
    }
}
