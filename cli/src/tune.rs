//! `tracewright tune`

use std::fmt::Write as _;
use std::io::Write as _;

use serde_json::{Value, json};
use tracewright::Plan;
use tracewright::runtime::{Device, Runtime};
use tracewright::tune::{FASTER, Tried, Tuned, TuningCache, Verdict, Workbench, tune};

use crate::arguments::TuneArguments;
use crate::error::Error;
use crate::{Interrupt, ReadModel, build};

/// All runs measure with the same numbers.
const SEED: u64 = 0;

pub fn run(arguments: &TuneArguments, read: ReadModel, interrupt: &Interrupt) -> Result<(), Error> {
    let model = &arguments.model_arguments;
    let plan = model.plan(read(&arguments.model, &model.network.allow_config_key)?, model.context)?;
    let compiler = build::compiler(&arguments.compile, interrupt)?;
    let plan = Plan { target: compiler.resolve(&plan.target)?, ..plan };
    let folder = build::cache_folder(&arguments.compile)?;
    let cache = TuningCache::new(&folder, &plan.target, &compiler.version()?);
    let known = cache.read()?;
    build::report_damage(&known);
    let mut products = Tuned::all(&plan, &known)?;
    if products.is_empty() {
        say!("no kernel computes a product of this model here: there is nothing to tune");
    }
    let result = match arguments.show {
        true => Ok(()),
        false => {
            let runtime = Runtime::new(Device::LocalTask { workers: 0 })?;
            let bench =
                Workbench { compiler: &compiler, runtime: &runtime, target: &plan.target, seed: SEED };
            tune(&mut products, &cache, &bench, arguments.budget, &mut |product, tried| {
                match tried {
                    None => say!("{:.1} %  {}", 100.0 * product.share, product.tilings.product),
                    Some(tried) => say!("    {}", outcome(tried)),
                }
                interrupt.go_on()
            })
        }
    };
    let text = match arguments.json {
        true => format!("{}\n", json(&products, &cache)),
        false => table(&products),
    };
    std::io::stdout().lock().write_all(text.as_bytes()).map_err(Error::Output)?;
    Ok(result?)
}

fn outcome(Tried { tiling, verdict }: &Tried) -> String {
    match verdict {
        Verdict::Ratio { median, shortest, .. } => {
            format!("{tiling}: {median:.3} of the usual time, the shortest {shortest:.3}")
        }
        Verdict::Wrong(how) => format!("{tiling}: rejected, it is wrong: {how}"),
        Verdict::Refused(why) => format!("{tiling}: rejected by the compiler: {why}"),
    }
}

fn json(products: &[Tuned], cache: &TuningCache) -> Value {
    let product = |Tuned { share, record, .. }: &Tuned| {
        let best = record.best();
        json!({
            "product": record.product,
            "share": share,
            "usual": record.usual,
            "fastest": best.map(|(tiling, _)| tiling),
            "ratio": best.map(|(_, ratio)| ratio),
            "tried": record.tried,
        })
    };
    let all = products.iter().map(|tuned| {
        let mut json = product(tuned);
        json["left"] = tuned.left().len().into();
        json
    });
    json!({ "folder": cache.folder(), "products": all.collect::<Vec<_>>() })
}

fn table(products: &[Tuned]) -> String {
    let mut text = String::new();
    for tuned in products {
        let Tuned { share, record, .. } = tuned;
        let fastest = match record.best() {
            Some((tiling, ratio)) => format!("{ratio:.3} of the usual time: {tiling}"),
            None => format!("as usual: {}", record.usual),
        };
        let (tried, left) = (record.tried.len(), tuned.left().len());
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{:>5.1} %  {}\n         {fastest}; {tried} tried, {left} not",
            100.0 * share,
            record.product
        );
    }
    let _ = writeln!(
        text,
        "faster is what takes at most {FASTER} of the usual time; shares are of the time of products, the mean of entry points"
    );
    text
}
