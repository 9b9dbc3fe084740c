//! Loads, chooses and unloads the adapters of an open model.

use std::sync::mpsc::channel;

use models::LoraMatrices;

use super::ModelError;
use super::adapters::Adapters;
use super::handle::{Inner, Model};
use super::jobs::Job;
use crate::named_adapter::NamedAdapter;

impl Inner {
    fn adapters(&self) -> Result<&Adapters, ModelError> {
        let path = self.text.path.clone();
        let (does, asked) = ("was opened without room for adapters", "choose an adapter for each request");
        self.adapters.as_deref().ok_or(ModelError::Kind { path, does, asked })
    }

    pub(super) fn load_adapter(&self, adapter: NamedAdapter) -> Result<(), ModelError> {
        let all = self.adapters()?;
        let matrices = all.network.lora_matrices(&all.files, &adapter.path)?;
        self.place_adapters(vec![(adapter, matrices)])
    }

    /// Puts adapters in free places. All of them go to the device together.
    pub(super) fn place_adapters(
        &self,
        adapters: Vec<(NamedAdapter, LoraMatrices)>,
    ) -> Result<(), ModelError> {
        if adapters.is_empty() {
            return Ok(());
        }
        let all = self.adapters()?;
        let (mut loaded, mut placed) = (Vec::new(), Vec::new());
        let mut table = all.table();
        for (adapter, matrices) in adapters {
            table.check_new(&adapter.name)?;
            let one = table.placed(adapter, all.room.count)?;
            placed.push((one.index, matrices));
            loaded.push(one);
        }
        // Requests need the table while the engine works.
        drop(table);
        let (answer, adapted) = channel();
        self.ask(Job::Adapt(placed, answer))?;
        adapted.recv().map_err(|_| ModelError::Gone)??;
        let mut table = all.table();
        loaded.iter().try_for_each(|one| table.check_new(&one.adapter.name))?;
        table.named.extend(loaded);
        Ok(())
    }
}

impl Model {
    /// Returns a handle of the same model whose requests use the adapter with this name, see
    /// [`OpenOptions::lora_adapters`](super::OpenOptions::lora_adapters). The requests of all handles run in the same batch. After the adapter is
    /// [unloaded](Self::unload_adapter), such a handle still uses it.
    ///
    /// ```no_run
    /// use tracewright::model::NamedAdapter;
    /// use tracewright::{Model, OpenOptions, user};
    ///
    /// let sql = NamedAdapter { name: "sql".into(), path: "adapters/sql".into() };
    /// let options = OpenOptions { lora_adapters: vec![sql], ..OpenOptions::default() };
    /// let model = Model::open_with("SmolLM2-135M-Instruct", options)?;
    /// let question = || [user("How many rows has the table `songs`?")];
    /// println!("base: {}", model.chat(question())?.text()?);
    /// println!("sql: {}", model.with_adapter("sql")?.chat(question())?.text()?);
    /// # Ok::<(), tracewright::ModelError>(())
    /// ```
    pub fn with_adapter(&self, name: &str) -> Result<Self, ModelError> {
        let table = self.inner.adapters()?.table();
        let adapter = Some(table.named[table.index_of(name)?].clone());
        Ok(Self { inner: self.inner.clone(), adapter })
    }

    /// Adds an adapter while the model runs. The model needs a free place for it, see [`OpenOptions::max_loras`](super::OpenOptions::max_loras).
    pub fn load_adapter(&self, adapter: NamedAdapter) -> Result<(), ModelError> {
        self.inner.load_adapter(adapter)
    }

    /// Removes an adapter. Its place is free after all requests that use it have ended.
    pub fn unload_adapter(&self, name: &str) -> Result<(), ModelError> {
        let mut table = self.inner.adapters()?.table();
        let index = table.index_of(name)?;
        table.named.remove(index);
        Ok(())
    }

    /// Returns the adapters that requests can choose.
    pub fn adapters(&self) -> Vec<NamedAdapter> {
        let table = self.inner.adapters.as_deref().map(Adapters::table);
        table.map_or(Vec::new(), |table| table.named.iter().map(|one| one.adapter.clone()).collect())
    }

    /// Returns an error if the handle has an adapter, for work that knows no adapters.
    pub(super) fn check_base(&self, asked: &'static str) -> Result<(), ModelError> {
        if self.adapter.is_none() {
            return Ok(());
        }
        let (path, does) = (self.inner.text.path.clone(), "applies adapters to generated text only");
        Err(ModelError::Kind { path, does, asked })
    }
}
