export default core=>{
var p=core[15];var d=core[17];var a=core[20],m=core[54],s=core[56];var g=6e5,w=12,A=16,u="SHA-256",n=class i{ignored=0;#t;constructor(t,r){this.topic=t,this.#t=r}static async of(t,r,o){let e=globalThis.crypto?.subtle;if(!e)throw new p("insecure-context","A password needs HTTPS or localhost");if(typeof o!="string"||!o)throw new p("password-invalid","A password is a text");let c=await e.importKey("raw",s(o.normalize()),"PBKDF2",!1,["deriveBits"]),l=s(`tornado-signal password ${d}
${t}
${r}`),h=await e.deriveBits({name:"PBKDF2",hash:u,salt:l,iterations:g},c,256),b=await e.importKey("raw",h,{name:"HMAC",hash:u},!1,["sign"]),y=S=>e.sign("HMAC",b,s(S)),E=await e.importKey("raw",await y("key"),"AES-GCM",!1,["encrypt","decrypt"]);return new i(r.replace(/~.*/s,`~${a(await y(r))}`),E)}async seal(t,r){let o=crypto.getRandomValues(new Uint8Array(w)),e=await crypto.subtle.encrypt(f(o,r),this.#t,s(t));return a(o)+a(e)}async unseal(t,r,o=new Set){try{let e=m(t);if(a(e)!==t)throw new Error("another form");let c=e.subarray(0,w),l=await crypto.subtle.decrypt(f(c,r),this.#t,e.subarray(w));if(o.size===o.add(t.slice(0,A)).size)throw new Error("repeated");return new TextDecoder().decode(l)}catch{return this.ignored+=1,""}}},f=(i,t)=>({name:"AES-GCM",iv:i,additionalData:s(t===void 0?"beacon":`mail
${t}`)});return({Cipher:n});
}
//# sourceMappingURL=secret.js.map
