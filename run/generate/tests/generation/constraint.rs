//! Answers that follow a schema or a grammar, with the demo's tokenizer and a network that says anything.

#![allow(clippy::unwrap_used, reason = "the helpers are called by tests only")]

#[path = "../../../template/tests/documents/mod.rs"]
mod documents;
use crate::support;

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use documents::{Document, Random};
use errors::WithCauses;
use ops::{ElementType, TensorType};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde_json::{Value, json};
use support::{Layers, go_on, hashing};
use trace::{Argument, Role, Signature};
use tracewright_generate::{
    Batch, CallArgument, Constrainer, Constraint, Executor, Finish, GenerateError, Generated, Network,
    Penalties, Sampling, Session, TokenOptions, Tokenizer, stop_tokens,
};

/// Whether tests take their long form: `cargo xtask test --long`.
fn is_long() -> bool {
    std::env::var_os("TRACEWRIGHT_TEST_LONG").is_some()
}

/// A network whose logits are drawn anew for each call.
struct Anything {
    vocabulary: usize,
    random: RefCell<ChaCha8Rng>,
    /// How far the logits are apart.
    spread: f32,
    /// The token that it favours in each row; if there are none, that of the largest logit.
    favours: Vec<u32>,
    /// How often logits were read.
    read: RefCell<usize>,
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
        *self.read.borrow_mut() += usize::from(buffer.len() >= 4 * self.vocabulary);
        Ok(buffer.clone())
    }

    fn read_element(&self, buffer: &Vec<u8>, index: usize) -> Result<Vec<u8>, GenerateError> {
        Ok(buffer[4 * index..][..4].to_vec())
    }

    fn call(&self, _: &str, arguments: Vec<CallArgument<Vec<u8>>>) -> Result<Vec<Vec<u8>>, GenerateError> {
        let CallArgument::Buffer(tokens) = &arguments[0] else { panic!("tokens come first") };
        let rows = tokens.len() / 4;
        let mut random = self.random.borrow_mut();
        let mut logit = || random.next_u32() as f32 / u32::MAX as f32 * self.spread;
        let logits: Vec<f32> = (0..rows * self.vocabulary).map(|_| logit()).collect();
        let best = |row: &[f32]| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap() as u32;
        let favoured: Vec<u32> = if self.favours.is_empty() {
            logits.chunks(self.vocabulary).map(best).collect()
        } else {
            self.favours.clone()
        };
        let favoured = favoured.iter().flat_map(|token| token.to_le_bytes()).collect();
        Ok(vec![logits.iter().flat_map(|x| x.to_le_bytes()).collect(), favoured])
    }
}

const CONTEXT: usize = 60_000;

fn anything(vocabulary: usize, batch: usize, seed: u64) -> Network<Anything> {
    favouring(&[], vocabulary, batch, seed)
}

fn favouring(favours: &[u32], vocabulary: usize, batch: usize, seed: u64) -> Network<Anything> {
    let of = |name: &str, role, element, shape: &[usize]| Argument {
        name: name.into(),
        role,
        ty: TensorType::new(element, shape),
        axes: Vec::new(),
    };
    let i32 = ElementType::I32;
    let signature = Signature {
        name: "decode".into(),
        arguments: vec![
            of("tokens", Role::Tokens, i32, &[batch, 1]),
            of("start", Role::Start { context: CONTEXT }, i32, &[batch]),
            of("count", Role::Count, i32, &[batch]),
        ],
        results: vec![
            of("logits", Role::Logits, ElementType::F32, &[batch, vocabulary]),
            of("token", Role::Token, i32, &[batch]),
        ],
    };
    let random = RefCell::new(ChaCha8Rng::seed_from_u64(seed));
    let favours = favours.to_vec();
    let executor = Anything { vocabulary, random, spread: 12.0, favours, read: RefCell::new(0) };
    Network::on(executor, &[signature]).unwrap()
}

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo")
}

fn tokenizer() -> Tokenizer {
    Tokenizer::load(demo()).unwrap().unwrap()
}

fn constrainer(tokenizer: &Tokenizer) -> Constrainer {
    Constrainer::new(tokenizer, &stop_tokens(demo()).unwrap()).unwrap()
}

fn options(constraint: Constraint, temperature: f32, seed: u64) -> TokenOptions {
    TokenOptions {
        max_tokens: 500,
        sampling: Sampling { temperature, seed, ..Sampling::default() },
        stop_tokens: stop_tokens(demo()).unwrap(),
        constraint: Some(constraint),
        ..TokenOptions::default()
    }
}

/// The answer of a network that may generate any token.
fn answer(
    tokenizer: &Tokenizer,
    constraint: &Constraint,
    temperature: f32,
    seed: u64,
) -> (Generated, String) {
    // More ids than tokens, as in models whose vocabulary is rounded up.
    let network = anything(tokenizer.vocab_size() + 7, 1, seed);
    let options = options(constraint.clone(), temperature, seed);
    let go_on = |_| ControlFlow::Continue(());
    let generated = Session::new(&network).generate(&[5], &options, go_on).unwrap();
    let text = tokenizer.decode(&generated.tokens).unwrap();
    (generated, text)
}

fn animal() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "legs": {"type": "integer", "minimum": 0, "maximum": 8},
            "kind": {"enum": ["bird", "fish", "fox"]},
            "friends": {"type": "array", "items": {"$ref": "#/$defs/friend"}, "maxItems": 3},
            "weight": {"type": "number", "exclusiveMinimum": 0, "maximum": 99.5},
        },
        "required": ["name", "legs", "kind", "friends"],
        "additionalProperties": false,
        "$defs": {"friend": {
            "type": "object",
            "properties": {"name": {"type": "string", "pattern": "^[A-Z][a-z]{1,6}$"}, "old": {"type": "boolean"}},
            "required": ["name", "old"],
            "additionalProperties": false,
        }},
    })
}

#[test]
fn an_answer_parses_and_is_valid_by_its_schema_whatever_the_network_says() {
    let tokenizer = tokenizer();
    let (schema, judge) = (animal(), jsonschema::validator_for(&animal()).unwrap());
    let constraint = constrainer(&tokenizer).json_schema(&schema.to_string()).unwrap();
    let (mut complete, count) = (0, if is_long() { 150 } else { 45 });
    for seed in 0..count {
        // Greedy, and of different heat.
        let (generated, text) = answer(&tokenizer, &constraint, [0.0, 0.7, 5.0][seed as usize % 3], seed);
        // A number may have as many digits as anybody likes.
        if generated.finish == Finish::Length {
            continue;
        }
        assert_eq!(generated.finish, Finish::Stop);
        let value: Value =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{seed}: {error}: {text}"));
        assert!(judge.is_valid(&value), "{seed}: {text}");
        complete += 1;
    }
    assert!(15 * complete > 13 * count, "{complete} of {count}");
}

#[test]
fn whitespace_between_the_tokens_of_json_is_allowed_where_it_is_asked_for() {
    let tokenizer = tokenizer();
    let schema = r#"{"type": "array", "items": {"enum": [1, 2]}, "minItems": 3, "maxItems": 3}"#;
    let grammar = format!("start: %json {schema}");
    for (flexible, most) in [(false, 5..8), (true, 8..500)] {
        let constrainer = constrainer(&tokenizer).whitespace_flexible(flexible);
        for constraint in [constrainer.json_schema(schema), constrainer.grammar(&grammar)] {
            let constraint = constraint.unwrap();
            let texts = (0..20).map(|seed| answer(&tokenizer, &constraint, 1.0, seed).1);
            let longest = texts.map(|text| text.len()).max().unwrap();
            assert!(most.contains(&longest), "{flexible}: {longest}");
        }
    }
}

#[test]
fn a_grammar_that_forces_one_text_gives_it() {
    let tokenizer = tokenizer();
    let text = "The {fox}, \"é 👍\" and\n\tnobody else: 42.";
    let constraint = constrainer(&tokenizer).grammar(&format!("start: {}", json!(text))).unwrap();
    for seed in 0..20 {
        for temperature in [0.0, 1.0] {
            let (generated, said) = answer(&tokenizer, &constraint, temperature, seed);
            assert_eq!((said.as_str(), generated.finish), (text, Finish::Stop));
        }
    }
}

#[test]
fn a_grammar_with_choices_gives_them_all_and_nothing_else() {
    let tokenizer = tokenizer();
    let grammar = "start: greeting \", \" NAME END\ngreeting: \"hello\" | \"good \" (\"day\" | \"night\")\n\
                   NAME: /[A-Z][a-z]{2,4}/\nEND: /[.!]/\n";
    let constraint = constrainer(&tokenizer).grammar(grammar).unwrap();
    let mut begun: Vec<String> = Vec::new();
    for seed in 0..60 {
        let (_, text) = answer(&tokenizer, &constraint, 3.0, seed);
        let (greeting, rest) = text.split_once(", ").unwrap();
        begun.push(greeting.to_owned());
        let name = rest.strip_suffix(['.', '!']).unwrap();
        assert!(
            name.starts_with(|c: char| c.is_ascii_uppercase()) && (3..=5).contains(&name.len()),
            "{text}"
        );
    }
    begun.sort_unstable();
    begun.dedup();
    assert_eq!(begun, ["good day", "good night", "hello"]);
}

#[test]
fn where_an_answer_may_end_the_model_says_whether_it_does() {
    let tokenizer = tokenizer();
    let stops = stop_tokens(demo()).unwrap();
    let constraint = constrainer(&tokenizer).grammar("start: /a{0,400}/").unwrap();
    let lengths: Vec<usize> = (0..40)
        .map(|seed| {
            let (generated, text) = answer(&tokenizer, &constraint, 1.0, seed);
            assert!(text.chars().all(|c| c == 'a') && generated.finish == Finish::Stop, "{text}");
            assert!(!generated.tokens.iter().any(|token| stops.contains(token)));
            text.len()
        })
        .collect();
    assert!(lengths.iter().any(|&length| length != lengths[0]), "{lengths:?}");
    // A model without stop tokens cannot say so: it goes on for as long as there is something to say.
    let endless = Constrainer::new(&tokenizer, &[]).unwrap().grammar("start: /a{0,40}/").unwrap();
    for seed in 0..10 {
        let network = anything(tokenizer.vocab_size() + 7, 1, seed);
        let options = TokenOptions { stop_tokens: Vec::new(), ..options(endless.clone(), 1.0, seed) };
        let generated =
            Session::new(&network).generate(&[5], &options, |_| ControlFlow::Continue(())).unwrap();
        let text = tokenizer.decode(&generated.tokens).unwrap();
        assert_eq!((text, generated.finish), ("a".repeat(40), Finish::Stop));
    }
}

/// Each row of a batch follows its own constraint, from its own beginning, next to a row that follows none.
#[test]
fn rows_of_a_batch_follow_their_own() {
    let tokenizer = tokenizer();
    let constrainer = constrainer(&tokenizer);
    let [yes, number] = ["start: \"yes, \" \"I do\"", "start: /[0-9]{9}/"]
        .map(|grammar| constrainer.grammar(grammar).unwrap());
    let network = anything(tokenizer.vocab_size(), 3, 1);
    let mut batch = Batch::new(&network);
    let free = TokenOptions { max_tokens: 30, ..TokenOptions::default() };
    let all = [options(yes.clone(), 1.0, 1), options(number, 1.0, 2), free];
    for options in &all {
        batch.join([5], options).unwrap();
    }
    let mut texts = vec![String::new(); 3];
    let mut again = false;
    while batch.free() < 3 {
        for (row, generated) in batch.step(|_, _| ControlFlow::Continue(())).unwrap() {
            texts[row] = tokenizer.decode(&generated.tokens).unwrap();
            if row == 0 && !again {
                // Another text takes the row, and the same constraint begins again.
                again = true;
                assert_eq!(texts[0], "yes, I do");
                assert_eq!(batch.join([6], &all[0]).unwrap(), 0);
            }
        }
    }
    assert_eq!(texts[0], "yes, I do");
    assert!(texts[1].len() == 9 && texts[1].bytes().all(|byte| byte.is_ascii_digit()), "{texts:?}");
}

/// Settings that can change the most likely token make a session read logits. Otherwise the program chooses
/// the token.
#[test]
fn logits_are_read_only_where_they_are_needed() {
    let tokenizer = tokenizer();
    let grammar = constrainer(&tokenizer).grammar("start: /a{20}/").unwrap();
    let read = |options: &TokenOptions| {
        let network = anything(tokenizer.vocab_size(), 1, 3);
        let options = TokenOptions { max_tokens: 6, ..options.clone() };
        let generated =
            Session::new(&network).generate(&[5], &options, |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(generated.logprobs.len(), if options.logprobs.is_some() { 6 } else { 0 });
        *network.executor().read.borrow()
    };
    let plain = TokenOptions::default();
    assert_eq!(read(&plain), 0);
    // The grammar leaves no choice: the second token on is forced.
    assert_eq!(read(&TokenOptions { constraint: Some(grammar), ..plain.clone() }), 1);
    let free = constrainer(&tokenizer).grammar("start: /[ab]{20}/").unwrap();
    assert_eq!(read(&TokenOptions { constraint: Some(free), ..plain.clone() }), 6);
    assert_eq!(read(&TokenOptions { logprobs: Some(2), ..plain.clone() }), 6);
    let penalties = Penalties { presence: 0.5, ..Penalties::default() };
    let penalized = Sampling { penalties, ..Sampling::default() };
    assert_eq!(read(&TokenOptions { sampling: penalized, ..plain }), 6);
}

/// Keys and punctuation that a schema fixes take no steps of their own. Logits of each token, where they are kept, change no
/// token.
#[test]
fn forced_tokens_are_shown_to_the_network_together() {
    let tokenizer = tokenizer();
    let schema = json!({
        "type": "object",
        "properties": {
            "what the animal is called": {"enum": ["fox", "owl"]},
            "how many legs the animal has": {"type": "integer", "minimum": 0, "maximum": 8},
            "whether the animal is brave": {"type": "boolean"},
        },
        "required": ["what the animal is called", "how many legs the animal has", "whether the animal is brave"],
        "additionalProperties": false,
    });
    let judge = jsonschema::validator_for(&schema).unwrap();
    let constraint = constrainer(&tokenizer).json_schema(&schema.to_string()).unwrap();
    let network = hashing(tokenizer.vocab_size(), 1, Layers::KvAndRing);
    for seed in 0..20 {
        let options = options(constraint.clone(), [0.0, 1.0][seed as usize % 2], seed);
        let prompt = [5, seed as u32];
        let told = RefCell::new(Vec::new());
        let tell = |token| {
            told.borrow_mut().push(token);
            ControlFlow::Continue(())
        };
        let generated = Session::new(&network).generate(&prompt, &options, tell).unwrap();
        assert_eq!((&generated.tokens, generated.finish), (&told.into_inner(), Finish::Stop));
        let text = tokenizer.decode(&generated.tokens).unwrap();
        assert!(judge.is_valid(&serde_json::from_str(&text).unwrap()), "{text}");
        assert!(2 * generated.decode_steps < generated.tokens.len(), "{generated:?}");

        let kept = TokenOptions { keep_logits: true, logprobs: Some(1), ..options.clone() };
        let alone = Session::new(&network).generate(&prompt, &kept, go_on).unwrap();
        assert_eq!(alone.tokens, generated.tokens);
        assert_eq!((alone.logits.len(), alone.logprobs.len()), (alone.tokens.len(), alone.tokens.len()));

        let most = generated.tokens.len() / 2;
        let cut = TokenOptions { max_tokens: most, ..options };
        let cut = Session::new(&network).generate(&prompt, &cut, go_on).unwrap();
        assert_eq!((&cut.tokens[..], cut.finish), (&generated.tokens[..most], Finish::Length));
    }
}

fn refused<T>(result: Result<T, GenerateError>) -> String {
    match result {
        Ok(_) => panic!("it is not refused"),
        Err(error) => WithCauses(&error).to_string(),
    }
}

#[test]
fn what_cannot_be_followed_is_refused_and_the_message_says_where() {
    let tokenizer = tokenizer();
    let constrainer = constrainer(&tokenizer);
    let schema = |text: &str| refused(constrainer.json_schema(text));
    let grammar = |text: &str| refused(constrainer.grammar(text));
    let expect = |said: String, words: &[&str]| {
        println!("{said}\n");
        assert!(words.iter().all(|word| said.contains(word)), "{words:?}: {said}");
        assert!(!said.contains("verbose") && !said.contains("panick"), "{said}");
    };
    expect(schema("{\n  \"type\": object\n}"), &["not valid JSON", "line 2 column 11"]);
    expect(schema("{\"type\": \"animal\"}"), &["Tracewright cannot follow the schema", "animal"]);
    expect(
        schema("{\"type\": \"integer\", \"minimum\": 5, \"maximum\": 3}"),
        &["Tracewright cannot follow the schema"],
    );
    expect(schema("{\"$ref\": \"http://example.com/schema\"}"), &["Tracewright cannot follow the schema"]);
    expect(grammar("start: \"a\"\n\nrest: )"), &["not valid at line 3, column 7"]);
    expect(grammar("start: \"a\" other"), &["not valid at line 1, column ", "other"]);
    expect(grammar("begin: \"a\""), &["start"]);
    expect(grammar(""), &["start"]);
    expect(
        grammar("start: %json {\n\"type\": \"null\"}\nrest: )"),
        &["not valid at line 3, column 7", "expecting rule"],
    );
    expect(grammar("start: %json {\"type\": null"), &["not valid", "json"]);
    expect(grammar("start: %json {\"type\": \"animal\"}"), &["not valid", "animal"]);
    expect(grammar("start: /(/"), &["not valid at line 1, column ", "unclosed group"]);
    expect(grammar("root ::= \"yes\""), &["line 1, column 6", "GBNF", "start:"]);
}

#[test]
fn a_constraint_that_leaves_no_token_is_an_error_that_says_so() {
    // A tokenizer with three tokens, none of which has a `b`.
    let file = |decoder: Value| {
        json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": null, "post_processor": null, "decoder": decoder,
            "model": {"type": "BPE", "vocab": {"a": 0, "c": 1, "ac": 2}, "merges": [["a", "c"]]},
        })
    };
    let load = |file: &Value| {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("tokenizer.json"), file.to_string()).unwrap();
        Tokenizer::load(folder.path()).unwrap().unwrap()
    };
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let poor = load(&file(bytes));
    let said = |grammar: &str| {
        let constraint = Constrainer::new(&poor, &[]).unwrap().grammar(grammar)?;
        let options = TokenOptions { constraint: Some(constraint), ..TokenOptions::default() };
        let network = anything(3, 1, 0);
        Session::new(&network).generate(&[1], &options, |_| ControlFlow::Continue(()))
    };
    assert_eq!(said("start: \"ac\" \"a\"").unwrap().finish, Finish::Stop);
    for (grammar, step) in [("start: \"ab\"", 1), ("start: \"b\"", 0)] {
        let said = refused(said(grammar));
        assert!(
            said.starts_with(&format!("step {step}: the schema or the grammar allows no token")),
            "{said}"
        );
    }
    // Words of a dictionary, which say nothing of bytes.
    let words = load(&file(json!({"type": "WordPiece", "prefix": "##", "cleanup": true})));
    let said = refused(Constrainer::new(&words, &[]));
    assert!(said.contains("does not define the bytes of its tokens"), "{said}");
}

/// A text whose grammar allows no token ends alone, and the other texts of the batch go on.
#[test]
fn a_text_that_cannot_continue_ends_alone() {
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": {"a": 0, "c": 1, "ac": 2}, "merges": [["a", "c"]]},
    });
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let tokenizer = Tokenizer::load(folder.path()).unwrap().unwrap();
    let constrainer = Constrainer::new(&tokenizer, &[]).unwrap();
    let network = anything(3, 3, 1);
    let mut batch = Batch::new(&network);
    let follows = |grammar: Option<&str>| TokenOptions {
        max_tokens: 6,
        constraint: grammar.map(|grammar| constrainer.grammar(grammar).unwrap()),
        ..TokenOptions::default()
    };
    for grammar in [Some("start: \"aab\""), None, Some("start: /c{9}/")] {
        batch.join([0], &follows(grammar)).unwrap();
    }
    let (mut texts, mut failed) = (Vec::new(), Vec::new());
    while batch.free() < 3 {
        for (row, ended) in batch.step_each(|_, _| ControlFlow::Continue(())).unwrap() {
            match ended {
                Ok(generated) => texts.push((row, generated.tokens.len())),
                Err(error) => failed.push((row, error.to_string())),
            }
        }
    }
    assert_eq!(texts, [(1, 6), (2, 6)]);
    assert!(matches!(&failed[..], [(0, why)] if why.contains("allows no token")), "{failed:?}");
}

#[test]
fn a_module_that_favours_what_is_no_token_is_broken() {
    let answers = |favours: [u32; 2]| {
        let network = favouring(&favours, 3, 2, 1);
        let mut batch = Batch::new(&network);
        for _ in favours {
            batch.join([0], &TokenOptions { max_tokens: 1, ..TokenOptions::default() }).unwrap();
        }
        let done = batch.step(|_, _| ControlFlow::Continue(()))?;
        Ok::<_, GenerateError>(done.into_iter().map(|(row, text)| (row, text.tokens)).collect::<Vec<_>>())
    };
    assert_eq!(answers([2, 0]).unwrap(), [(0, vec![2]), (1, vec![0])]);
    for (favoured, wrong) in [([3, 0], 3), ([0, 3], 3), ([5, 0], 5), ([0, u32::MAX], u32::MAX)] {
        let Err(error) = answers(favoured) else { panic!("{favoured:?}: not refused") };
        assert!(
            matches!(error, GenerateError::Favoured { token, vocabulary: 3 } if token == wrong),
            "{favoured:?}: {error}"
        );
    }
}

/// The constants of a schema are the only possible answer, whatever the network generates.
#[test]
fn random_documents_pass_through_schemas() {
    let tokenizer = tokenizer();
    let constrainer = constrainer(&tokenizer);
    let mut random = Random(62);
    for seed in 0..if is_long() { 400 } else { 60 } {
        let documents: Vec<Document> = std::iter::repeat_with(|| Document::new(&mut random, 2))
            // JSON has no text for the float that Python prints as `Infinity`.
            .filter(|document| !document.dumped.contains("Infinity"))
            .take(50)
            .collect();
        let constants: Vec<_> =
            documents.iter().map(|document| format!("{{\"const\":{}}}", document.text)).collect();
        let schema = format!(
            "{{\"type\":\"array\",\"prefixItems\":[{}],\"items\":false,\"minItems\":50}}",
            constants.join(",")
        );
        let constraint = constrainer.json_schema(&schema).unwrap();
        let network = anything(tokenizer.vocab_size(), 1, seed);
        let options = TokenOptions { max_tokens: CONTEXT, ..options(constraint, 1.0, seed) };
        let generated =
            Session::new(&network).generate(&[5], &options, |_| ControlFlow::Continue(())).unwrap();
        let compact: Vec<&str> = documents.iter().map(|document| &*document.compact).collect();
        assert_eq!(
            tokenizer.decode(&generated.tokens).unwrap(),
            format!("[{}]", compact.join(",")),
            "{schema}"
        );
    }
}
