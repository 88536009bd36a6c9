export default core=>{
var n=core[14];async function t(r,o,s){let{signal:e=new AbortController().signal}=r,a=new n(r,e,()=>{},o),{topic:c}=await a.first(i=>i.nearby({signal:e}));return s(c,r)}return({nearby:t});
}
//# sourceMappingURL=nearby.js.map
