//! `tracewright quality` measures how much quality a model loses on a real text because of its weight format.

use std::path::PathBuf;

use clap::Args;
use tracewright::trace::Quantization;

use crate::arguments::RunArguments;

#[derive(Args, Clone)]
pub struct Arguments {
    /// Hugging Face model directory, GGUF file or export
    pub model: PathBuf,
    /// File with the text, or `-` for stdin
    #[arg(short, long, value_name = "FILE")]
    pub file: PathBuf,
    /// Reference for the comparison: a weight format of the same model, or a model with the same
    /// tokenizer; unless the reference is an export, Tracewright computes the reference in f32
    #[arg(long, value_name = "none|q8|q4[:pure]|q4_k[:pure]|mxfp4[:pure]|MODEL", default_value = "none")]
    pub against: String,
    /// Number of tokens per window; only the second half of each window is measured
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(4..))]
    pub window: u32,
    /// Maximum number of windows [default: all windows of the text]
    #[arg(long, value_name = "N")]
    pub windows: Option<usize>,
    /// Also measure the effect of each weight matrix, with a model in which only this matrix is
    /// quantized in all layers
    #[arg(long)]
    pub layers: bool,
    /// Print one JSON object on stdout instead of lines of text
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub run: RunArguments,
}

impl Arguments {
    #[cfg_attr(not(feature = "iree"), allow(dead_code, reason = "models are compared by running them"))]
    fn reference(&self) -> (Option<PathBuf>, Quantization) {
        match self.against.parse() {
            Ok(format) => (None, format),
            Err(_) => (Some(PathBuf::from(&self.against)), Quantization::Computed),
        }
    }
}

#[cfg(feature = "iree")]
mod run {
    use std::collections::BTreeMap;

    use console::{print, read_text, usage};
    use instruments::quality::{
        LayerQuality, Quality, QualityError, QualityReport, Windows, compare, first_token,
    };
    use serde_json::json;
    use tracewright::Model;
    use tracewright::bake::format;
    use tracewright::export::IreeManifest;
    use tracewright::model::Opening;
    use tracewright::ops::{ElementType, WeightFormat};
    use tracewright::trace::{Parameter, Quantization, key_pattern};

    use super::Arguments;
    use crate::Invocation;
    use crate::error::Error;
    use crate::interrupt::Interrupt;
    use crate::load;
    use crate::progress::spinner;

    impl Arguments {
        pub fn run(&self, invocation: &Invocation) -> Result<(), Error> {
            let Invocation { interrupt, .. } = invocation;
            let text = read_text(&self.file)?;
            let opening = load::read(&self.model, &self.run, invocation)?;
            let model = self.open(opening.clone(), interrupt)?;
            let (path, format) = self.reference();
            let path = path.map(|path| console::resolved(&path)).transpose()?;
            // An export is what it is.
            let is_export = match &path {
                Some(path) => matches!(IreeManifest::read(path), Ok(Some(_))),
                None => opening.is_export(),
            };
            let mut run = self.run.clone();
            let arguments = &mut run.build.model_arguments;
            if !is_export {
                let numeric = &mut arguments.network.numeric;
                (numeric.quantize, numeric.dtype) = (Some(format), Some(ElementType::F32));
                (arguments.network.quant_map, arguments.text.kv) = (None, None);
            }
            let reference = match path {
                Some(path) => load::read(&path, &run, invocation)?,
                None => load::again(&opening, &run, invocation)?,
            };
            let reference = self.open(reference, interrupt)?;

            let tokenizer = model
                .tokenizer()
                .ok_or_else(|| usage(format!("`{}` has no tokenizer.json", self.model.display())))?;
            let tokens = tokenizer.encode_plain(&text)?;
            let windows =
                Windows { length: self.window as usize, most: self.windows, first: first_token(tokenizer)? };
            let quality = measure(&model, &reference, &tokens, &windows, interrupt)?;
            let mut report = QualityReport::new(quality, &model, &reference)?;
            for (pattern, format) in if self.layers { matrices(&model) } else { BTreeMap::new() } {
                let mut run = self.run.clone();
                let one = BTreeMap::from([(pattern.clone(), Some(format))]);
                let network = &mut run.build.model_arguments.network;
                network.numeric.quantize = Some(Quantization::mapped(Quantization::Computed, one));
                network.quant_map = None;
                let model = self.open(load::again(&opening, &run, invocation)?, interrupt)?;
                let quality = measure(&model, &reference, &tokens, &windows, interrupt)?;
                report.layers.push(LayerQuality { pattern, format: format.word(), quality });
            }
            Ok(print(&if self.json { format!("{}\n", json!(report)) } else { report.text() })?)
        }

        fn open(&self, mut opening: Opening, interrupt: &Interrupt) -> Result<Model, Error> {
            opening.fit_context(self.window as usize);
            opening.options.score = true;
            load::open(opening, &self.run.build.compile, interrupt)
        }
    }

    /// The keys are patterns of weight names.
    fn matrices(model: &Model) -> BTreeMap<String, WeightFormat> {
        let parameters = model.info().build.as_ref().map_or(&[][..], |build| &build.parameters);
        let quantized = |parameter: &Parameter| {
            let format = format(parameter).filter(|format| format.element().is_none())?;
            let keys = parameter.sources().into_iter().map(|(key, _)| key_pattern(key));
            Some(keys.map(|key| (key, format)).collect::<Vec<_>>())
        };
        parameters.iter().filter_map(quantized).flatten().collect()
    }

    fn measure(
        model: &Model,
        reference: &Model,
        tokens: &[u32],
        windows: &Windows,
        interrupt: &Interrupt,
    ) -> Result<Quality, Error> {
        let bar = spinner("comparing");
        let compared = compare(model, reference, tokens, windows, |done, all| {
            bar.set_message(format!("window {} of {all}", done + 1));
            interrupt.go_on()
        });
        bar.finish_and_clear();
        compared.map_err(|error| match error {
            QualityError::Interrupted => Error::Interrupted,
            QualityError::Model(error) => error.into(),
            error => error.into(),
        })
    }
}
