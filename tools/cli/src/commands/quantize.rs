//! `tracewright quantize` writes a model directory whose weights are quantized and calibrated on a text.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use tracewright::trace::Quantization;

use crate::arguments::{CompileArguments, LoraArguments};

#[derive(Args)]
pub struct Arguments {
    /// A Hugging Face model directory or a GGUF file
    pub model: PathBuf,
    /// The model directory to write
    #[arg(short, long, value_name = "DIR")]
    pub out: PathBuf,
    /// File with a text that is similar to the model's future inputs, or `-` for stdin. Tracewright
    /// rounds the weights in such a way that the activations for this text change little
    #[arg(long, value_name = "FILE")]
    pub calibrate: Option<PathBuf>,
    /// Importance matrix that llama.cpp's `llama-imatrix` wrote, to use instead of a calibration text
    #[arg(long, value_name = "FILE.gguf", conflicts_with = "calibrate")]
    pub imatrix: Option<PathBuf>,
    /// Formats of the weight matrices: q8, q4[:pure], q4_k[:pure], mxfp4[:pure]
    #[arg(long, value_name = "FORMAT", default_value = "q4_k")]
    pub quant: Quantization,
    /// JSON file with the formats of some weight matrices, as for `generate --quant-map`
    #[arg(long, value_name = "FILE.json")]
    pub quant_map: Option<PathBuf>,
    /// Number of tokens in each window of the calibration text
    #[arg(long, value_name = "N", default_value = "512", requires = "calibrate")]
    pub window: NonZeroUsize,
    /// Maximum number of windows of the calibration text
    #[arg(long, value_name = "N", default_value = "128", requires = "calibrate")]
    pub windows: NonZeroUsize,
    /// Number of worker threads; 0 uses all cores
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// Ignore a key of config.json that Tracewright does not know; may be repeated
    #[arg(long, value_name = "KEY")]
    pub allow_config_key: Vec<String>,
    #[command(flatten)]
    pub lora: LoraArguments,
    #[command(flatten)]
    pub compile: CompileArguments,
}

#[cfg(feature = "iree")]
mod run {
    use std::collections::BTreeMap;
    use std::path::Path;

    use console::{read_text, usage};
    use instruments::calibrate::{CalibrateError, Calibration};
    use instruments::quality::Windows;
    use tracewright::bake::{Importance, Quantizer, check_new_checkpoint};
    use tracewright::export::put_model_files;
    use tracewright::footprint::{Footprint, readable};
    use tracewright::generate::Tokenizer;
    use tracewright::irpa::ModelFiles;
    use tracewright::lower::Weights;
    use tracewright::models::gguf::read_imatrix;
    use tracewright::ops::{ElementType, WeightFormat};
    use tracewright::output_guard::check_output_folder;
    use tracewright::quant_map::read_quant_map;
    use tracewright::runtime::{Device, Runtime};
    use tracewright::trace::Quantization;
    use tracewright::{Plan, PlanError};

    use super::Arguments;
    use crate::checkpoint::open;
    use crate::error::Error;
    use crate::progress::spinner;
    use crate::{Invocation, build};

    impl Arguments {
        pub fn run(&self, invocation: &Invocation) -> Result<(), Error> {
            let &Invocation { read, ref interrupt, .. } = invocation;
            check_output_folder(&self.model, &self.out)?;
            let out = std::path::absolute(&self.out).unwrap_or_else(|_| self.out.clone());
            let files = ModelFiles::at(&self.model);
            let (network, checkpoint) = open(read, &files, &self.allow_config_key, &self.lora)?;
            let kind = network.kind.clone();
            let more = kind.files();
            check_new_checkpoint(&self.out, &more.iter().map(String::as_str).collect::<Vec<_>>())?;
            let window = self.window.get().min(network.max_context());
            let plan = Plan::new(network, Some(ElementType::F32), Some(window), Some(window))?;
            let quantize = match &self.quant_map {
                Some(path) => {
                    Quantization::mapped(self.quant.clone(), read_quant_map(path).map_err(PlanError::from)?)
                }
                None => self.quant.clone(),
            };
            if !quantize.rounds() {
                return Err(usage("`--quant none` rounds nothing; name a format, as q4_k").into());
            }
            let plan = Plan { weights: Weights { quantize, ..plan.weights }, ..plan };
            let trace = plan.record(&plan.steps())?.trace;
            let parameters = trace.parameters().map_err(PlanError::from)?;
            let mut quantizer = Quantizer::new(&checkpoint, &parameters, &formats(&plan)?);
            if let Some(text) = &self.calibrate {
                let windows = self.windows(&files, text, window)?;
                let compiler = build::compiler(&self.compile, interrupt)?;
                let cache = build::cache_folder(&self.compile)?;
                let target = compiler.resolve(&plan.target)?;
                let plan = Plan { target, ..plan };
                let runtime = Runtime::new(Device::LocalTask { workers: self.threads })?;
                let tools = (&compiler, &*cache);
                let calibration = Calibration { plan: &plan, checkpoint: &checkpoint, tools, runtime };
                let bar = spinner("calibrating");
                let ran = calibration.run(
                    &windows,
                    |layer| {
                        for (keys, moments) in layer.inputs {
                            let importance = Importance::Moments(moments);
                            keys.iter().try_for_each(|key| quantizer.round(key, &importance))?;
                        }
                        Ok(())
                    },
                    |done, all| {
                        bar.set_message(format!("calibrating layer {} of {all}", done + 1));
                        interrupt.go_on()
                    },
                );
                bar.finish_and_clear();
                ran?;
            }
            if let Some(path) = &self.imatrix {
                let squares = read_imatrix(path, &files, &self.allow_config_key)?;
                for (key, squares) in squares {
                    interrupt.check()?;
                    quantizer.round(&key, &Importance::Squares(squares))?;
                }
            }
            let bar = spinner("rounding what is left");
            let bytes = quantizer.write(&out);
            bar.finish_and_clear();
            let bytes = bytes?;
            put_model_files(&files, &kind, &out)?;
            say!("wrote `{}`: {} of weights", self.out.display(), readable(bytes));
            Ok(())
        }

        fn windows(&self, files: &ModelFiles, text: &Path, length: usize) -> Result<Vec<Vec<u32>>, Error> {
            let tokenizer = Tokenizer::load(files)?
                .ok_or_else(|| usage(format!("`{}` has no tokenizer.json", self.model.display())))?;
            let tokens = tokenizer.encode_plain(&read_text(text)?)?;
            let windows = Windows { length, most: Some(self.windows.get()), first: None }.of(&tokens);
            if windows.is_empty() {
                return Err(CalibrateError::Short { found: tokens.len(), window: length }.into());
            }
            Ok(windows)
        }
    }

    /// The keys are patterns of weight names.
    fn formats(plan: &Plan) -> Result<BTreeMap<String, WeightFormat>, Error> {
        let expanded = plan.expand(&plan.record(&plan.steps())?.trace)?;
        let footprint = Footprint::of(&expanded).map_err(PlanError::from)?;
        let formats = footprint.weights.iter().filter_map(|(stored_as, stored)| {
            let format = stored_as.quantized()?;
            Some(stored.patterns.iter().map(move |pattern| (pattern.clone(), format)))
        });
        Ok(formats.flatten().collect())
    }
}
