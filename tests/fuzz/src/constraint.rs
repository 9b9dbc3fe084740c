//! Fuzzes JSON schemas and grammars, and the first tokens of texts that follow them.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::LazyLock;

use tracewright::generate::{
    CallArgument, Constrainer, Constraint, Executor, GenerateError, Network, Session, TokenOptions, Tokenizer,
};
use tracewright::ops::{ElementType, TensorType};
use tracewright::trace::{Argument, Role, Signature};

use crate::said;

/// The number of tokens that each text gets.
const TOKENS: usize = 12;

/// The tokenizer of the demo, which has a token for each byte, and what compiles for its tokens.
static DEMO: LazyLock<Option<(Tokenizer, Constrainer)>> = LazyLock::new(|| {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo");
    let tokenizer = said(Tokenizer::load(&demo)).flatten()?;
    let constrainer = said(Constrainer::new(&tokenizer, &[0]))?;
    Some((tokenizer, constrainer))
});

pub fn read_schema(_: &Path, bytes: &[u8]) {
    follow(bytes, Constrainer::json_schema);
}

pub fn read_grammar(_: &Path, bytes: &[u8]) {
    follow(bytes, Constrainer::grammar);
}

fn follow(bytes: &[u8], constrain: fn(&Constrainer, &str) -> Result<Constraint, GenerateError>) {
    let (Ok(text), Some((tokenizer, constrainer))) = (str::from_utf8(bytes), &*DEMO) else { return };
    let Some(constraint) = said(constrain(constrainer, text)) else { return };
    let vocabulary = tokenizer.vocab_size();
    for seed in [1, 2] {
        let executor = Anything { vocabulary, seed };
        let Some(network) = said(Network::on(executor, &[signature(vocabulary)])) else { return };
        let options = TokenOptions {
            max_tokens: TOKENS,
            stop_tokens: vec![0],
            constraint: Some(constraint.clone()),
            ..TokenOptions::default()
        };
        said(Session::new(&network).generate(&[5], &options, |_| ControlFlow::Continue(())));
    }
}

fn signature(vocabulary: usize) -> Signature {
    let of = |name: &str, role, element, shape: &[usize]| Argument {
        name: name.into(),
        role,
        ty: TensorType::new(element, shape),
        axes: Vec::new(),
    };
    let i32 = ElementType::I32;
    Signature {
        name: "decode".into(),
        arguments: vec![
            of("tokens", Role::Tokens, i32, &[1, 1]),
            of("start", Role::Start { context: 64 }, i32, &[1]),
            of("count", Role::Count, i32, &[1]),
        ],
        results: vec![
            of("logits", Role::Logits, ElementType::F32, &[1, vocabulary]),
            of("token", Role::Token, i32, &[1]),
        ],
    }
}

/// A network whose logits depend on the position only.
struct Anything {
    vocabulary: usize,
    seed: u32,
}

impl Executor for Anything {
    type Buffer = Vec<u8>;

    fn zeros(&self, ty: &TensorType) -> Result<Vec<u8>, GenerateError> {
        Ok(vec![0; 4 * ty.count()])
    }

    fn upload(&self, _: &TensorType, bytes: &[u8]) -> Result<Vec<u8>, GenerateError> {
        Ok(bytes.to_vec())
    }

    fn read(&self, buffer: &Vec<u8>) -> Result<Vec<u8>, GenerateError> {
        Ok(buffer.clone())
    }

    fn read_element(&self, buffer: &Vec<u8>, index: usize) -> Result<Vec<u8>, GenerateError> {
        Ok(buffer[4 * index..][..4].to_vec())
    }

    fn call(&self, _: &str, arguments: Vec<CallArgument<Vec<u8>>>) -> Result<Vec<Vec<u8>>, GenerateError> {
        let position = match arguments.get(1) {
            Some(CallArgument::Buffer(start)) => {
                start.iter().fold(0, |sum, &byte| sum * 256 + u32::from(byte))
            }
            _ => 0,
        };
        let logit = |token: u32| (token ^ position).wrapping_mul(self.seed.wrapping_mul(2_654_435_761)) >> 8;
        let logits = (0..self.vocabulary as u32).flat_map(|token| (logit(token) as f32).to_le_bytes());
        Ok(vec![logits.collect(), vec![0; 4]])
    }
}
