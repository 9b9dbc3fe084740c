//! Audio files of each format, and files that are none (`tests/oracle/clips.py`).
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::f64::consts::TAU;
use std::fs;
use std::path::{Path, PathBuf};

use tracewright_audio::{AudioError, decode, resample};

fn wav(rate: u32, channels: u16, samples: &[i16]) -> Vec<u8> {
    let bytes: Vec<u8> = samples.iter().flat_map(|x| x.to_le_bytes()).collect();
    let (size, block) = (bytes.len() as u32, 2 * channels);
    let mut file = b"RIFF".to_vec();
    file.extend((36 + size).to_le_bytes());
    file.extend(b"WAVEfmt \x10\0\0\0\x01\0");
    file.extend(channels.to_le_bytes());
    file.extend(rate.to_le_bytes());
    file.extend((rate * u32::from(block)).to_le_bytes());
    file.extend(block.to_le_bytes());
    file.extend(b"\x10\0data");
    file.extend(size.to_le_bytes());
    file.extend(bytes);
    file
}

fn sine(hertz: f64, rate: u32, count: usize) -> Vec<f32> {
    (0..count).map(|i| (0.4 * (TAU * hertz * i as f64 / f64::from(rate)).sin()) as f32).collect()
}

fn clip(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clips").join(name)
}

/// The content as a file of this name.
fn decoded(name: &str, content: &[u8]) -> Result<Vec<f32>, AudioError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, content).unwrap();
    decode(&path, 16_000)
}

#[test]
fn channels_are_averaged_and_samples_are_exact() {
    let samples: Vec<i16> = (0..4000).map(|i| (i * 37 % 20_000 - 10_000) as i16).collect();
    let mono = decoded("a.wav", &wav(16_000, 1, &samples)).unwrap();
    let expected: Vec<f32> = samples.iter().map(|&x| f32::from(x) / 32768.0).collect();
    assert_eq!(mono, expected);
    let stereo = decoded("a.wav", &wav(16_000, 2, &samples)).unwrap();
    let expected: Vec<f32> = expected.chunks(2).map(|pair| (pair[0] + pair[1]) / 2.0).collect();
    assert_eq!(stereo, expected);
}

/// Neither early nor late, and nothing is missing at the end.
#[test]
fn other_rates_are_resampled_without_delay() {
    for rate in [8000, 11_025, 22_050, 44_100, 48_000, 96_000] {
        let count = rate as usize;
        let found = resample(&sine(440.0, rate, count), rate, 16_000);
        assert_eq!(found.len(), 16_000, "{rate}");
        let expected = sine(440.0, 16_000, 16_000);
        // The ends ring, as silence is around them.
        let range = 200..15_800;
        let distance = |late: usize| {
            let pairs = range.clone().map(|i| (found[i + late] - expected[i]).abs());
            pairs.fold(0.0, f32::max)
        };
        assert!(distance(0) < 2e-3, "{rate}: {}", distance(0));
        assert!(distance(1) > 0.05, "{rate}: a sample late is seen");
    }
    assert_eq!(resample(&[0.5; 100], 48_000, 16_000).len(), 34);
    assert_eq!(resample(&[], 48_000, 16_000).len(), 0);
}

#[test]
fn each_format_gives_the_two_tones() {
    for name in ["tones.flac", "tones.mp3", "tones.ogg", "tones.m4a"] {
        let found = decode(&clip(name), 16_000).unwrap();
        let seconds = found.len() as f64 / 16_000.0;
        assert!((0.55..0.7).contains(&seconds), "{name}: {seconds} s");
        let middle = &found[3000..7000];
        let amplitude = |hertz: f64| {
            let at = |i: usize| TAU * hertz * i as f64 / 16_000.0;
            let [mut re, mut im] = [0.0, 0.0];
            for (i, &x) in middle.iter().enumerate() {
                re += f64::from(x) * at(i).cos();
                im += f64::from(x) * at(i).sin();
            }
            2.0 * re.hypot(im) / middle.len() as f64
        };
        // Each tone is in one of two channels.
        for (hertz, expected) in [(440.0, 0.2), (660.0, 0.2), (550.0, 0.0)] {
            let found = amplitude(hertz);
            assert!((found - expected).abs() < 0.01, "{name}: {found} at {hertz} Hz");
        }
    }
}

#[test]
fn other_files_are_errors() {
    let whole = wav(16_000, 1, &[100; 32_000]);
    let error = |name: &str, content: &[u8]| decoded(name, content).unwrap_err();
    assert!(matches!(error("a.wav", b""), AudioError::Empty { .. }));
    assert!(matches!(error("a.wav", &wav(16_000, 1, &[])), AudioError::Empty { .. }));
    assert!(matches!(error("a.wav", b"Dear diary, nothing happened.\n"), AudioError::Format { .. }));
    let text = "It was the best of times, it was the worst of times. ".repeat(2000);
    assert!(matches!(error("a.wav", text.as_bytes()), AudioError::Format { .. }));
    assert!(matches!(error("a.wav", &wav(10, 1, &[1; 100])), AudioError::Rate { found: 10, .. }));
    match error("a.wav", &whole[..whole.len() / 2]) {
        AudioError::Cut { found, expected, .. } => assert!((found - 1.0).abs() < 0.1 && expected == 2.0),
        other => panic!("{other}"),
    }
    let flac = fs::read(clip("tones.flac")).unwrap();
    let cut = error("a.flac", &flac[..flac.len() / 3]);
    assert!(matches!(cut, AudioError::Cut { .. } | AudioError::Damaged { .. }), "{cut}");
    // Several mp3 files in one are one; two ogg files are an error.
    let [mp3, ogg] = ["tones.mp3", "tones.ogg"].map(|name| fs::read(clip(name)).unwrap());
    let one = decoded("a.mp3", &mp3).unwrap().len();
    let two = decoded("a.mp3", &[&mp3[..], &mp3].concat()).unwrap().len();
    assert!(two * 100 > one * 195, "{one} {two}");
    // The audio of this clip has one page.
    assert!(matches!(error("a.ogg", &ogg[..ogg.len() - 100]), AudioError::Format { .. }));
    assert!(matches!(error("a.ogg", &[&ogg[..], &ogg].concat()), AudioError::Several { .. }));
    let mut infinite = wav(16_000, 1, &[1; 64]);
    infinite[20..22].copy_from_slice(&[3, 0]);
    infinite[32..36].copy_from_slice(&[4, 0, 32, 0]);
    infinite[28..32].copy_from_slice(&64_000u32.to_le_bytes());
    infinite[48..52].copy_from_slice(&f32::INFINITY.to_le_bytes());
    assert!(matches!(error("a.wav", &infinite), AudioError::Damaged { .. }));
    assert!(matches!(decode(&clip("opus.ogg"), 16_000).unwrap_err(), AudioError::Encoding { .. }));
    assert!(matches!(decode(&clip("missing.wav"), 16_000).unwrap_err(), AudioError::File(_)));
    assert!(matches!(
        decode(Path::new(env!("CARGO_MANIFEST_DIR")), 16_000).unwrap_err(),
        AudioError::File(_)
    ));
    // A wrong extension is no error.
    assert_eq!(decoded("a.mp3", &whole).unwrap().len(), 32_000);
    // No prefix of a file, and no changed byte, is a panic.
    for name in ["tones.flac", "tones.mp3", "tones.ogg", "tones.m4a"] {
        let content = fs::read(clip(name)).unwrap();
        for i in 1..40 {
            let mut changed = content[..content.len() * i / 40].to_vec();
            drop(decoded(name, &changed));
            let place = changed.len() * 7 * i % changed.len();
            changed[place] ^= 0x55;
            drop(decoded(name, &changed));
        }
    }
}
