//! An open model.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use numpy::{PyArray1, PyArray2, PyReadonlyArray1};
use pyo3::exceptions::{PyTypeError, PyUserWarning};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use serde_json::{Map, Value, json};
use tracewright::generate::{Chat, Tokenizer};
use tracewright::model::{Request, Transcript};
use tracewright::{ModelError, user};

use crate::error::raised;
use crate::generation::PyGeneration;
use crate::{options, wait};

/// An open model. Several Python threads can use a model at the same time.
#[pyclass(frozen, module = "tracewright", name = "Model")]
pub struct PyModel {
    path: PathBuf,
    /// The model, or `None` after the model was closed.
    model: Mutex<Option<tracewright::Model>>,
}

impl PyModel {
    fn model(&self) -> PyResult<tracewright::Model> {
        let model = self.model.lock().unwrap_or_else(PoisonError::into_inner);
        model.clone().ok_or_else(|| raised(ModelError::Gone))
    }

    fn tokenizer<'a>(&self, model: &'a tracewright::Model) -> Result<&'a Tokenizer, ModelError> {
        model.tokenizer().ok_or_else(|| ModelError::NoTokenizer { path: self.path.clone() })
    }

    /// Returns the token ids of an argument, which is a text or a sequence of token ids.
    fn tokens(&self, model: &tracewright::Model, argument: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
        if let Ok(text) = argument.cast::<PyString>() {
            let text: String = text.extract()?;
            let encoded = || Ok(self.tokenizer(model)?.encode(&text)?);
            return argument.py().detach(encoded).map_err(raised);
        }
        if let Ok(array) = argument.extract::<PyReadonlyArray1<'_, u32>>() {
            return Ok(array.as_array().to_vec());
        }
        argument.extract().map_err(|_| {
            PyTypeError::new_err("the argument is neither a string nor a sequence of token ids from 0 on")
        })
    }

    fn request(
        &self,
        py: Python<'_>,
        tokens: Vec<u32>,
        arguments: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyGeneration> {
        let model = self.model()?;
        let (options, reuse) = options::generation(model.defaults().options.clone(), arguments)?;
        let request = model.continue_prompt(tokens).options(options);
        PyGeneration::begin(py, if reuse { Request::reuse(request) } else { request })
    }
}

/// Converts the arguments of a call to a conversation. A single text becomes a message of the user.
fn conversation(
    messages: &Bound<'_, PyAny>,
    tools: Option<&Bound<'_, PyAny>>,
    variables: Option<&Bound<'_, PyAny>>,
) -> PyResult<Chat> {
    let list = |name: &str, object: &Bound<'_, PyAny>| match options::json(object)? {
        Value::Array(list) => Ok(list),
        other => Err(PyTypeError::new_err(format!("`{name}` is {other}, expected a list"))),
    };
    let messages = match messages.cast::<PyString>() {
        Ok(text) => vec![user(text.extract::<String>()?).json()],
        Err(_) => list("messages", messages)?,
    };
    let tools = tools.map(|tools| list("tools", tools)).transpose()?;
    let variables = match variables.map(options::json).transpose()? {
        None => Map::new(),
        Some(Value::Object(variables)) => variables,
        Some(other) => {
            return Err(PyTypeError::new_err(format!("`template_vars` is {other}, expected a dict")));
        }
    };
    Ok(Chat { messages, tools, variables, add_generation_prompt: true, now: None })
}

enum Speech {
    File(PathBuf),
    Samples(Vec<f32>),
}

fn samples(audio: &Bound<'_, PyAny>) -> PyResult<Speech> {
    if let Ok(array) = audio.extract::<PyReadonlyArray1<'_, f32>>() {
        return Ok(Speech::Samples(array.as_array().to_vec()));
    }
    let what = "`audio` is neither a path nor a one-dimensional array of float32 samples";
    audio.extract().map(Speech::File).map_err(|_| PyTypeError::new_err(what))
}

#[pymethods]
impl PyModel {
    #[new]
    #[pyo3(signature = (model, **options))]
    fn new(py: Python<'_>, model: PathBuf, options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let stopped = Arc::new(AtomicBool::new(false));
        let options = options::opening(py, options, &stopped)?;
        let path = model.clone();
        let opened = wait::result(py, move || tracewright::Model::open_with(path, options));
        let opened = opened.inspect_err(|_| stopped.store(true, Ordering::Relaxed))?;
        for warning in &opened.info().warnings {
            let text = std::ffi::CString::new(warning.to_string()).unwrap_or_default();
            PyErr::warn(py, &py.get_type::<PyUserWarning>(), &text, 1)?;
        }
        Ok(Self { path: model, model: Mutex::new(Some(opened)) })
    }

    /// Answers a conversation, which the model's chat template converts to a prompt.
    #[pyo3(signature = (messages, *, tools=None, template_vars=None, **options))]
    fn chat(
        &self,
        py: Python<'_>,
        messages: &Bound<'_, PyAny>,
        tools: Option<&Bound<'_, PyAny>>,
        template_vars: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyGeneration> {
        let text = self.render(py, messages, tools, template_vars)?;
        let tokens = self.encode(py, &text, false)?;
        self.request(py, tokens, options)
    }

    /// Continues a text, or a sequence of token ids, without a chat template.
    #[pyo3(signature = (prompt, **options))]
    fn generate(
        &self,
        py: Python<'_>,
        prompt: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyGeneration> {
        let tokens = self.tokens(&self.model()?, prompt)?;
        self.request(py, tokens, options)
    }

    /// Renders a conversation with the model's chat template, and returns the prompt.
    #[pyo3(signature = (messages, *, tools=None, template_vars=None))]
    fn render(
        &self,
        py: Python<'_>,
        messages: &Bound<'_, PyAny>,
        tools: Option<&Bound<'_, PyAny>>,
        template_vars: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<String> {
        let chat = conversation(messages, tools, template_vars)?;
        let model = self.model()?;
        wait::result(py, move || model.render(&chat))
    }

    /// Returns the embeddings of texts as float32 [texts, features].
    #[pyo3(signature = (texts, *, prompt=None))]
    fn embed<'py>(
        &self,
        py: Python<'py>,
        texts: &Bound<'py, PyAny>,
        prompt: Option<String>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let texts = options::texts("texts", texts)?;
        let model = self.model()?;
        let rows = wait::result(py, move || {
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            model.embed(&texts, prompt.as_deref())
        })?;
        matrix(py, &rows)
    }

    /// Returns the score of each document for a query as float32 [documents], in the order of the documents.
    fn rerank<'py>(
        &self,
        py: Python<'py>,
        query: String,
        documents: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray1<f32>>> {
        let documents = options::texts("documents", documents)?;
        let model = self.model()?;
        let mut ranked = wait::result(py, move || {
            let documents: Vec<&str> = documents.iter().map(String::as_str).collect();
            model.rerank(&query, &documents)
        })?;
        ranked.sort_by_key(|one| one.index);
        Ok(PyArray1::from_iter(py, ranked.into_iter().map(|one| one.score)))
    }

    /// Transcribes an audio file, or float32 samples at `sampling_rate`.
    #[pyo3(signature = (audio, **options))]
    fn transcribe<'py>(
        &self,
        py: Python<'py>,
        audio: &Bound<'py, PyAny>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (model, options) = (self.model()?, options::transcription(options)?);
        let rate = model.sampling_rate().map_err(raised)?;
        let given = samples(audio)?;
        let stopped = Arc::new(AtomicBool::new(false));
        let stop = stopped.clone();
        let found = wait::result(py, move || {
            let samples = match given {
                Speech::Samples(samples) => samples,
                Speech::File(path) => tracewright::audio::decode(&path, rate)?,
            };
            model.transcribe_samples(&samples, &options, |_| {
                if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
        });
        let transcript = found.inspect_err(|_| stopped.store(true, Ordering::Relaxed))?;
        let Transcript { language, duration, segments, .. } = &transcript;
        let text = transcript.text();
        let object =
            json!({ "language": language, "duration": duration, "text": text, "segments": segments });
        py.import("json")?.call_method1("loads", (object.to_string(),))
    }

    /// The samples per second that `transcribe` takes in an array.
    #[getter]
    fn sampling_rate(&self) -> PyResult<u32> {
        self.model()?.sampling_rate().map_err(raised)
    }

    /// Returns the logits after each token of a text as float32 [tokens, vocabulary].
    fn score<'py>(&self, py: Python<'py>, text: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let model = self.model()?;
        let tokens = self.tokens(&model, text)?;
        let rows = wait::result(py, move || model.score(&tokens))?;
        matrix(py, &rows)
    }

    /// Returns the token ids of a text.
    #[pyo3(signature = (text, *, special=true))]
    #[pyo3(name = "encode")]
    fn encode_text(&self, py: Python<'_>, text: &str, special: bool) -> PyResult<Vec<u32>> {
        self.encode(py, text, special)
    }

    /// Converts token ids to text, without special tokens.
    fn decode(&self, py: Python<'_>, tokens: Vec<u32>) -> PyResult<String> {
        let model = self.model()?;
        py.detach(|| Ok(self.tokenizer(&model)?.decode(&tokens)?)).map_err(raised)
    }

    /// The largest number of tokens in a sequence; a sequence contains the prompt and the answer.
    #[getter]
    fn context(&self) -> PyResult<usize> {
        Ok(self.model()?.info().context)
    }

    /// The number of token ids in the vocabulary.
    #[getter]
    fn vocabulary(&self) -> PyResult<usize> {
        Ok(self.model()?.info().vocabulary)
    }

    /// The number of texts that the model generates in parallel.
    #[getter]
    fn slots(&self) -> PyResult<usize> {
        Ok(self.model()?.info().slots)
    }

    /// Releases the model after all running texts have ended.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.model.lock().unwrap_or_else(PoisonError::into_inner).take()));
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        format!("Model({:?})", self.path.display().to_string())
    }
}

impl PyModel {
    fn encode(&self, py: Python<'_>, text: &str, special: bool) -> PyResult<Vec<u32>> {
        let model = self.model()?;
        let encoded = || {
            let tokenizer = self.tokenizer(&model)?;
            Ok(if special { tokenizer.encode(text) } else { tokenizer.encode_plain(text) }?)
        };
        py.detach(encoded).map_err(raised)
    }
}

impl Drop for PyModel {
    /// Releases the model, and waits for the device without holding the lock of the Python interpreter.
    fn drop(&mut self) {
        Python::attach(|py| self.close(py));
    }
}

fn matrix<'py>(py: Python<'py>, rows: &[Vec<f32>]) -> PyResult<Bound<'py, PyArray2<f32>>> {
    PyArray2::from_vec2(py, rows).map_err(|error| PyTypeError::new_err(error.to_string()))
}
