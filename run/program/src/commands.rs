//! Formats command lines for IREE's own tools, with which you can compile and run the files of an export.

use std::path::Path;

use ops::{ElementType, TensorType};
use runtime::{CompileOptions, Compiler};
use trace::{Argument, Role, Signature};

/// For a shell.
fn line<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    // No program accepts an argument with a zero byte.
    shlex::try_join(words).unwrap_or_default()
}

/// From stdin, because otherwise the module would contain the path of the text.
pub fn compile(compiler: &Compiler, options: &CompileOptions, text: &Path, vmfb: &Path) -> String {
    let [program, text, vmfb] =
        [compiler.path.as_path(), text, vmfb].map(|path| path.to_string_lossy().into_owned());
    let flags = options.all_flags();
    let words =
        [program.as_str(), "-", "-o", vmfb.as_str()].into_iter().chain(flags.iter().map(String::as_str));
    format!("{} < {}", line(words), line([text.as_str()]))
}

/// Calls an entry point once, at the beginning of a text, with the tokens that fit.
pub fn call(vmfb: &Path, archive: &Path, entry: &Signature, tokens: &[u32]) -> String {
    let mut words = vec![
        "iree-run-module".to_owned(),
        "--device=local-task".to_owned(),
        format!("--module={}", vmfb.display()),
        format!("--parameters=model={}", archive.display()),
        format!("--function={}", entry.name),
    ];
    words
        .extend(entry.arguments.iter().map(|argument| format!("--input={}", input(argument, entry, tokens))));
    words.extend(entry.results.iter().map(|result| match result.role {
        Role::State { .. } => "--output=".to_owned(),
        Role::Logits => format!("--output=@{}.logits.npy", entry.name),
        _ => "--output=-".to_owned(),
    }));
    line(words.iter().map(String::as_str))
}

/// `iree-run-module` fills missing numbers with zero.
fn input(argument: &Argument, entry: &Signature, tokens: &[u32]) -> String {
    let room = entry.arguments.iter().find(|argument| argument.role == Role::Tokens);
    let room = room.and_then(|argument| argument.ty.shape.last()).copied().unwrap_or_default();
    let fed = &tokens[..room.min(tokens.len())];
    let rows = |of: &[u32], each: usize| {
        let padded = of.iter().copied().chain(std::iter::repeat_n(0, each - of.len()));
        padded.map(|number| number.to_string()).collect::<Vec<_>>().join(",")
    };
    match argument.role {
        Role::Tokens => typed(&argument.ty, &rows(fed, room)),
        Role::Count if argument.is_host_scalar() => fed.len().to_string(),
        Role::Count => typed(&argument.ty, &fed.len().to_string()),
        Role::Extended { original } => {
            let is_extended = u8::from(fed.len() > original).to_string();
            if argument.is_host_scalar() { is_extended } else { typed(&argument.ty, &is_extended) }
        }
        _ if argument.is_host_scalar() => "0".to_owned(),
        _ => typed(&argument.ty, "0"),
    }
}

/// Formats a tensor argument, such as `1x8xi32=5,17`.
fn typed(ty: &TensorType, numbers: &str) -> String {
    let extents: String = ty.shape.iter().map(|extent| format!("{extent}x")).collect();
    let element = match ty.element {
        ElementType::I1 => "i8".to_owned(),
        element => element.to_string(),
    };
    format!("{extents}{element}={numbers}")
}
