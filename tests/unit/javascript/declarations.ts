// Compares client.d.ts with the module. tests/lint checks this file with tsc; nothing runs it.

import type * as entry from "entry";
import type * as source from "source";
import type * as declared from "../../../tornado_signal/web/client.d.ts";

/** Whether two types are identical, including optional properties. */
type Same<One, Other> =
  (<T>() => T extends One ? 1 : 2) extends <T>() => T extends Other ? 1 : 2 ? true : { differs: One; from: Other };
/** The parameters and result of each method. Private fields are not seen. */
type Methods<Class> = {
  [Name in keyof Class]: Class[Name] extends (...parameters: infer Parameters) => infer Result
    ? [Parameters, Result]
    : Class[Name];
};
/** The parameters and results of a function with two overloads. */
type Overloads<Function> = Function extends {
  (...parameters: infer Parameters1): infer Result1;
  (...parameters: infer Parameters2): infer Result2;
}
  ? [Parameters1, Result1, Parameters2, Result2]
  : never;
/** Whether each property of a class is writable in the declarations is up to them. */
type Writable<Class> = { -readonly [Name in keyof Class]: Class[Name] };

function same<_Check extends true>() {}
function assignable<To, _From extends To>() {}

// The same functions and classes are exported, also by the entry of the npm package.
same<Same<keyof typeof entry, keyof typeof declared>>();
same<Same<keyof typeof source, keyof typeof declared>>();

// Classes: the same constructors, methods, parameters, options and results.
type Client = declared.SignalClient;
type SourceClient = source.SignalClient;
same<Same<Writable<Methods<SourceClient>>, Writable<Methods<Client>>>>();
same<Same<Overloads<SourceClient["events"]>, Overloads<Client["events"]>>>();
same<Same<ConstructorParameters<typeof source.SignalClient>, ConstructorParameters<typeof declared.SignalClient>>>();
same<Same<ConstructorParameters<typeof source.SignalError>, ConstructorParameters<typeof declared.SignalError>>>();
assignable<declared.SignalError, source.SignalError>();
same<Same<keyof source.SignalError, keyof declared.SignalError>>();

// Functions: what the module returns is what is declared, from the declared parameters. Others are of the declared type.
assignable<typeof declared.room<unknown>, typeof source.room>();
assignable<typeof declared.nearby<unknown>, typeof source.nearby>();
same<Same<Parameters<typeof source.room>, Parameters<typeof declared.room>>>();

// The objects that a page gets: all methods of a room and peer have the same parameters.
type Own<Class> = Writable<Methods<Omit<Class, keyof EventTarget>>>;
type SourceRoom = ReturnType<typeof source.room>;
type SourcePeer = SourceRoom["peers"] extends Map<string, infer Each> ? Each : never;
same<Same<keyof Own<SourcePeer>, keyof Own<declared.Peer>>>();
same<Same<keyof Own<SourceRoom>, keyof Own<declared.Room>>>();
same<Same<Own<SourceRoom>["send"], Own<declared.Room>["send"]>>();
same<Same<Own<SourceRoom>["leave"], Own<declared.Room>["leave"]>>();
same<Same<Own<SourceRoom>["addStream"], Own<declared.Room>["addStream"]>>();
same<Same<Own<SourceRoom>["removeStream"], Own<declared.Room>["removeStream"]>>();
