//! Candid messages of clients and canisters: bounds, texts, steps.

use candid::{CandidType, Encode, Nat, Principal};
use envelope::candid_wire::{
    ARGUMENTS_MAX, Bounds, Cost, DEPTH_MAX, FIELDS_MAX, HEADER_BYTES_MAX, REFERENCE_TYPES_MAX,
    Refusal, STEPS_MAX, TYPES_MAX, VectorBound, decode, decode_nothing, hostile, principal_in,
};
use proptest::prelude::*;
use serde::{Deserialize, de::DeserializeOwned};
use serde_bytes::ByteBuf;

const VECTORS: &[VectorBound] = &[
    VectorBound::new("controllers", 10, Some("subnet.controllers_max")),
    VectorBound::new("environment_variables", 20, None),
    VectorBound::new("allowed_viewers", 10, None),
];
const BOUNDS: Bounds<'_> = Bounds { vectors: VECTORS };

#[derive(CandidType, Clone, Debug, Deserialize, PartialEq)]
struct Variable {
    name: String,
    value: String,
}

#[derive(CandidType, Clone, Debug, Deserialize, PartialEq)]
enum Visibility {
    #[serde(rename = "controllers")]
    Controllers,
    #[serde(rename = "public")]
    Public,
    #[serde(rename = "allowed_viewers")]
    AllowedViewers(Vec<Principal>),
}

candid::define_function!(Transform : (Variable) -> (Variable) query);

#[derive(CandidType, Clone, Debug, Default, Deserialize, PartialEq)]
struct Settings {
    controllers: Option<Vec<Principal>>,
    compute_allocation: Option<Nat>,
    environment_variables: Option<Vec<Variable>>,
    log_visibility: Option<Visibility>,
}

#[derive(CandidType, Clone, Debug, Deserialize, PartialEq)]
struct Argument {
    canister_id: Principal,
    settings: Settings,
    module: ByteBuf,
    version: Option<u64>,
    transform: Option<Transform>,
}

fn read<T: CandidType + DeserializeOwned>(message: &[u8]) -> Result<T, Refusal> {
    decode(message, BOUNDS, &mut Cost::default())
}

fn too_many(what: &'static str, most: u64) -> Refusal {
    Refusal::TooMany { what, most }
}

/// `vec null` of 2^60 elements.
const BOMB: &str = "4449444c016d7f0100808080808080808010";

// Promise: P15 - A Candid argument of more than 10,000 values is refused; elements without bytes
//   count.
#[test]
fn elements_without_bytes_are_refused_before_the_first() {
    let bomb = hex::decode(BOMB).unwrap();
    let mut cost = Cost::default();
    let values = too_many("values", STEPS_MAX);
    assert_eq!(decode_nothing(&bomb, BOUNDS, &mut cost), Err(values.clone()));
    assert!(cost.steps < 10 && cost.instructions < 1_000, "{cost:?}");
    assert_eq!(read::<Vec<()>>(&bomb), Err(values.clone()));
    // One record without fields less than there may be is read, and counted.
    let empty_records = |count: u64| {
        let mut message = b"DIDL\x02\x6d\x01\x6c\x00\x01\x00".to_vec();
        hostile::number(&mut message, count);
        message
    };
    let mut cost = Cost::default();
    // Two types and the vector itself.
    decode_nothing(&empty_records(STEPS_MAX - 3), BOUNDS, &mut cost).unwrap();
    assert_eq!(cost.steps, STEPS_MAX);
    assert_eq!(decode_nothing(&empty_records(STEPS_MAX - 2), BOUNDS, &mut cost), Err(values));
}

// Promise: P15 - Candid values nested deeper than 32 levels are refused.
#[test]
fn nested_opt_beyond_depth_limit_is_rejected() {
    #[derive(CandidType, Debug, Deserialize, PartialEq)]
    struct Nothing {}
    for levels in [DEPTH_MAX + 1, 3_004, 100_000] {
        let refused =
            decode_nothing(&hostile::nested_options(levels), BOUNDS, &mut Cost::default());
        assert_eq!(refused, Err(Refusal::TooDeep), "{levels}");
        assert_eq!(
            read::<Option<Nothing>>(&hostile::nested_options(levels)),
            Err(Refusal::TooDeep)
        );
    }
    assert_eq!(hostile::nested_options(3_004).len(), 3_014);
    assert_eq!(
        decode_nothing(&hostile::nested_options(DEPTH_MAX), BOUNDS, &mut Cost::default()),
        Ok(())
    );
}

// Promise: P15 - Types, fields, arguments and header bytes of Candid are bounded.
#[test]
fn types_fields_arguments_and_headers_are_bounded() {
    let refused = |message: Vec<u8>| {
        decode_nothing(&message, Bounds::default(), &mut Cost::default()).unwrap_err()
    };
    let header = |types: u64| {
        let mut message = b"DIDL".to_vec();
        hostile::number(&mut message, types);
        message
    };
    assert_eq!(refused(header(TYPES_MAX as u64 + 1)), too_many("types", TYPES_MAX as u64));
    let mut fields = header(1);
    fields.push(0x6c);
    hostile::number(&mut fields, FIELDS_MAX as u64 + 1);
    let most = FIELDS_MAX as u64;
    assert_eq!(refused(fields), too_many("fields in its types", most));
    let mut arguments = header(0);
    arguments.extend([ARGUMENTS_MAX as u8 + 1; 66]);
    assert_eq!(refused(arguments), too_many("arguments", ARGUMENTS_MAX as u64));
    // A type of a later version with more bytes than a header may have.
    let mut future = header(1);
    future.push(0x67);
    hostile::number(&mut future, HEADER_BYTES_MAX as u64);
    future.resize(2 * HEADER_BYTES_MAX, 0);
    assert_eq!(refused(future), too_many("bytes in its header", HEADER_BYTES_MAX as u64));
    // A function whose argument is an option of an option of an option ...
    let mut options = header(REFERENCE_TYPES_MAX as u64 + 1);
    options.extend([0x6a, 1, 1, 0, 0]);
    for next in 2..=REFERENCE_TYPES_MAX as u8 {
        options.extend([0x6e, next]);
    }
    options.extend([0x6e, 0x7f, 0]);
    let what = "types in the types of functions and services";
    assert_eq!(refused(options), too_many(what, REFERENCE_TYPES_MAX as u64));
}

// Promise: P15 - A list longer than the limit of its field is refused.
#[test]
fn a_list_has_as_many_elements_as_its_field_may_have() {
    let argument = |settings: Settings| Argument {
        canister_id: Principal::anonymous(),
        settings,
        module: ByteBuf::new(),
        version: None,
        transform: None,
    };
    let variable = Variable { name: String::new(), value: String::new() };
    let with = |controllers: usize, variables: usize, viewers: usize| {
        let viewers = vec![Principal::anonymous(); viewers];
        argument(Settings {
            controllers: Some(vec![Principal::anonymous(); controllers]),
            environment_variables: Some(vec![variable.clone(); variables]),
            log_visibility: Some(Visibility::AllowedViewers(viewers)),
            ..Settings::default()
        })
    };
    let told = |value: &Argument| read::<Argument>(&Encode!(value).unwrap());
    let full = with(10, 20, 10);
    assert_eq!(told(&full), Ok(full.clone()));
    let refused = |value| told(&value).unwrap_err().to_string();
    assert_eq!(
        refused(with(11, 0, 0)),
        "`controllers` has 11 elements, the limit is 10 (subnet.controllers_max)"
    );
    assert_eq!(refused(with(0, 21, 0)), "`environment_variables` has 21 elements, the limit is 20");
    assert_eq!(refused(with(0, 0, 11)), "`allowed_viewers` has 11 elements, the limit is 10");
    // 1.96 MB of empty environment variables: 80 bytes in memory for each two of them.
    let mut cost = Cost::default();
    let many = Encode!(&with(0, 980_000, 0)).unwrap();
    assert!(decode::<Argument>(&many, BOUNDS, &mut cost).is_err());
    assert!(cost.steps < 100, "{cost:?}");
    // Without a bound of its own a list is bounded by the number of values.
    let refused = decode::<Argument>(&many, Bounds::default(), &mut cost).unwrap_err();
    assert_eq!(refused, too_many("values", STEPS_MAX));
}

#[test]
fn the_text_of_a_mismatch_names_the_field_and_both_types() {
    #[derive(CandidType)]
    struct Wrong<I, S, M> {
        canister_id: I,
        settings: S,
        module: M,
    }
    #[derive(CandidType)]
    struct Empty {}
    #[derive(CandidType)]
    struct Controllers {
        controllers: String,
    }
    fn refused<I: CandidType, S: CandidType, M: CandidType>(
        canister_id: I,
        settings: S,
        module: M,
    ) -> String {
        let wrong = Wrong { canister_id, settings, module };
        read::<Argument>(&Encode!(&wrong).unwrap()).unwrap_err().to_string()
    }
    let id = Principal::anonymous();
    assert_eq!(
        refused(7_u64, Empty {}, ByteBuf::new()),
        "`canister_id` is of type nat64, principal is expected"
    );
    assert_eq!(refused(id, Empty {}, "text"), "`module` is of type text, blob is expected");
    assert_eq!(refused(id, (), ByteBuf::new()), "`settings` is of type null, record is expected");
    assert_eq!(
        read::<Argument>(&Encode!(&Empty {}).unwrap()).unwrap_err().to_string(),
        "`canister_id` is missing"
    );
    assert_eq!(
        read::<Argument>(&Encode!().unwrap()).unwrap_err().to_string(),
        "the message has no argument, one is expected"
    );
    assert_eq!(
        read::<Argument>(&Encode!(&"text").unwrap()).unwrap_err().to_string(),
        "the argument is of type text, record is expected"
    );
    // An option of another type becomes null, as everywhere in Candid.
    let wrong = Wrong {
        canister_id: id,
        settings: Controllers { controllers: "text".into() },
        module: ByteBuf::new(),
    };
    let read = read::<Argument>(&Encode!(&wrong).unwrap()).unwrap();
    assert_eq!(read.settings.controllers, None);
}

#[test]
fn a_principal_is_taken_from_the_field_of_the_first_argument_alone() {
    #[derive(CandidType)]
    struct Inner {
        canister_id: Principal,
    }
    #[derive(CandidType)]
    struct Outer {
        inner: Inner,
        other: Option<Principal>,
    }
    let id = Principal::from_slice(&[7; 10]);
    let found = |message: &[u8]| {
        principal_in(message, "canister_id", Bounds::default(), &mut Cost::default())
    };
    let inner = || Inner { canister_id: id };
    assert_eq!(found(&Encode!(&inner()).unwrap()), Ok(id));
    assert_eq!(found(&Encode!(&inner(), &"more").unwrap()), Ok(id));
    for other in [
        Encode!(&Outer { inner: inner(), other: Some(id) }).unwrap(),
        Encode!(&"first", &inner()).unwrap(),
        Encode!(&id).unwrap(),
        Encode!().unwrap(),
    ] {
        let refused = found(&other).unwrap_err().to_string();
        assert_eq!(refused, "the first argument has no field `canister_id` of type principal");
    }
    let cut = &Encode!(&inner()).unwrap()[..20];
    assert_eq!(
        found(cut).unwrap_err().to_string(),
        "invalid Candid at byte 17: the message is cut off"
    );
}

// Promise: P15 - Hostile Candid takes few steps and little stack.
#[test]
fn hostile_messages_take_few_steps_and_little_stack() {
    let read = |message: Vec<u8>| {
        let mut cost = Cost::default();
        let nothing = decode_nothing(&message, BOUNDS, &mut cost);
        let value = decode::<Option<Argument>>(&message, BOUNDS, &mut cost);
        let function = decode::<Transform>(&message, BOUNDS, &mut cost);
        assert!(cost.steps <= 3 * (STEPS_MAX + 2), "{cost:?}");
        (nothing, value, function, cost)
    };
    let all: Vec<_> = hostile::messages().into_iter().map(|(_, message)| read(message)).collect();
    // The library refuses with 32 KiB left: on 384 KiB the same happens as on any larger stack.
    for stack in [384 << 10, 1 << 20, 8 << 20] {
        let all = all.clone();
        let thread = std::thread::Builder::new().stack_size(stack).spawn(move || {
            assert!(
                hostile::messages().into_iter().map(|(_, message)| read(message)).eq(all),
                "with {stack} bytes of stack"
            );
        });
        thread.unwrap().join().unwrap();
    }
}

fn principals(most: usize) -> impl Strategy<Value = Vec<Principal>> {
    let principal = prop::collection::vec(any::<u8>(), 0..=29);
    prop::collection::vec(principal.prop_map(|bytes| Principal::from_slice(&bytes)), 0..=most)
}

fn arguments() -> impl Strategy<Value = Argument> {
    let visibility = prop_oneof![
        Just(Visibility::Controllers),
        Just(Visibility::Public),
        principals(10).prop_map(Visibility::AllowedViewers),
    ];
    let variable = ("[a-z]{0,9}", "\\PC{0,9}").prop_map(|(name, value)| Variable { name, value });
    let settings = (
        prop::option::of(principals(10)),
        prop::option::of(any::<u128>().prop_map(Nat::from)),
        prop::option::of(prop::collection::vec(variable, 0..=20)),
        prop::option::of(visibility),
    );
    let settings = settings.prop_map(|(controllers, compute, variables, visibility)| Settings {
        controllers,
        compute_allocation: compute,
        environment_variables: variables,
        log_visibility: visibility,
    });
    let transform = "[a-z]{1,9}".prop_map(|name| Transform::new(Principal::anonymous(), name));
    (principals(1), settings, any::<Vec<u8>>(), any::<Option<u64>>(), prop::option::of(transform))
        .prop_map(|(id, settings, module, version, transform)| Argument {
            canister_id: id.first().copied().unwrap_or(Principal::management_canister()),
            settings,
            module: ByteBuf::from(module),
            version,
            transform,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn whatever_the_encoder_writes_within_bounds_is_accepted(argument in arguments()) {
        let message = Encode!(&argument).unwrap();
        let mut cost = Cost::default();
        prop_assert_eq!(decode::<Argument>(&message, BOUNDS, &mut cost), Ok(argument.clone()));
        prop_assert_eq!(
            principal_in(&message, "canister_id", Bounds::default(), &mut cost),
            Ok(argument.canister_id)
        );
    }

    // Promise: P15 - Random bytes never panic the Candid reader and take bounded steps.
    #[test]
    fn bytes_never_panic_and_take_bounded_steps(
        argument in arguments(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
        bytes in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let mut changed = Encode!(&argument).unwrap();
        for (place, byte) in changes {
            let place = place.index(changed.len());
            changed[place] = byte;
        }
        let cut = changed[..cut.index(changed.len())].to_vec();
        for message in [changed, cut, [b"DIDL".as_slice(), &bytes].concat(), bytes] {
            let mut cost = Cost::default();
            let walked = decode_nothing(&message, BOUNDS, &mut cost);
            prop_assert!(cost.steps <= STEPS_MAX + FIELDS_MAX as u64 + TYPES_MAX as u64);
            let read = decode::<Argument>(&message, BOUNDS, &mut cost);
            // Values that the library reads passed the walk.
            prop_assert!(read.is_err() || walked.is_ok());
        }
    }
}
