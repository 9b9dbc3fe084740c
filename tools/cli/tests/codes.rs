//! Codes of errors, and `explain`.

use std::fs;

use error_codes::Code;

use crate::support::*;

#[test]
fn every_code_is_listed_and_explained() {
    let list = succeed(&mut bare(&["explain"])).out;
    assert_eq!(list.lines().count(), Code::ALL.len());
    for (line, code) in list.lines().zip(Code::ALL) {
        assert_eq!(line, format!("{code}  {}", code.title()));
    }
    let one = succeed(&mut bare(&["explain", "tw0201"])).out;
    assert!(one.starts_with("# TW0201: ") && one.contains("--allow") == one.contains("allow"), "{one}");
    let all: serde_json::Value =
        serde_json::from_str(&succeed(&mut bare(&["explain", "--json"])).out).unwrap();
    assert_eq!(all["codes"].as_array().unwrap().len(), Code::ALL.len());
    let one: serde_json::Value =
        serde_json::from_str(&succeed(&mut bare(&["explain", "TW0006", "--json"])).out).unwrap();
    assert_eq!([&one["code"], &one["title"]], ["TW0006", Code::TW0006.title()]);
    assert_eq!(one["explanation"], Code::TW0006.explanation());
    refused(
        &mut bare(&["explain", "TW9999"]),
        1,
        &["error[TW0510]", "there is no error with the code `TW9999`"],
    );
}

/// The error of each of these commands has the right code.
#[test]
fn an_error_says_its_code() {
    let folder = folder();
    let path = |name: &str, content: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        text(&path).to_owned()
    };
    let model = |name: &str, config: &str| {
        path(&format!("{name}/config.json"), config);
        text(&folder.path().join(name)).to_owned()
    };
    let llama = fs::read_to_string(demo().join("config.json")).unwrap();
    let with = |name: &str, from: &str, to: &str| {
        assert!(llama.contains(from), "{from}");
        model(name, &llama.replacen(from, to, 1))
    };
    let (demo, out) = (demo(), folder.path().join("out"));
    let (demo, out, own) = (text(&demo), text(&out), demo.join("model.safetensors"));
    let note = path("note.txt", "no archive");
    let page = path("page/model.safetensors", "<html>");
    let [vectors, tied] = ["embeddinggemma", "llama-tied"].map(fixture);
    let bare_model = with("bare", "{", "{");
    let cases: &[(&[&str], &str)] = &[
        (&["generte"], "TW0001"),
        (&["plan", "no/such/model"], "TW0006"),
        (&["bake", demo, "-o", text(&own)], "TW0008"),
        (&["random", demo, "-o", &model("taken", "{}")], "TW0009"),
        (&["bake", demo, "-o", &note], "TW0009"),
        (&["plan", "Org/Model-1B"], "TW1101"),
        (&["plan", &model("cut", "{\"model_type\": \"llama\",")], "TW0101"),
        (&["plan", &with("misspelt", "hidden_size", "hiden_size")], "TW0102"),
        (&["plan", &with("falcon", "LlamaForCausalLM", "FalconForCausalLM")], "TW0104"),
        (&["plan", text(&vectors)], "TW0105"),
        (&["plan", &with("hqq", "{", "{\"quantization_config\": {\"quant_method\": \"hqq\"},")], "TW0107"),
        (&["bake", text(&tied), "-o", out, "--dtype", "i8"], "TW0504"),
        (&["bake", &bare_model, "-o", out], "TW0204"),
        (&["verify", &note], "TW0301"),
        (&["verify", &page], "TW0203"),
        (&["plan", &with("odd", "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 5")], "TW0401"),
        (&["plan", demo, "--context", "1000000"], "TW0501"),
        (&["plan", demo, "--context", "64", "--chunk", "128"], "TW0502"),
        (&["plan", demo, "--target", "+sse"], "TW0001"),
    ];
    let other = |(arguments, code): &(&[&str], &str)| {
        let said = run(bare(arguments).current_dir(root())).err;
        (!said.starts_with(&format!("error[{code}]: "))).then(|| format!("{code}: {arguments:?}: {said}"))
    };
    assert_eq!(cases.iter().filter_map(other).collect::<Vec<_>>(), [""; 0]);
    // All of what is said, but for where this machine has the files.
    let said = |(arguments, _): &(&[&str], &str)| {
        let said = run(bare(arguments).current_dir(root())).err;
        said.replace(text(folder.path()), "FOLDER")
            .replace(text(&root().canonicalize().unwrap()), "CHECKOUT")
            .replace(text(root()), "CHECKOUT")
    };
    let all: Vec<String> = cases.iter().map(said).collect();
    expect_test::expect_file![root().join("tools/cli/tests/goldens/errors.txt")].assert_eq(&all.join("\n"));
}
